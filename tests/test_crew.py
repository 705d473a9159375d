"""Work on many files by several processes: all of it, in order, and to an end whatever happens."""

import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import thorough

from shards.crew import make_batches, work_on_all
from shards.damage import Problem, Report, Tick
from shards.errors import ShardsmithError
from shards.manifest import FileEntry


def entry(number: int, size: int = 20_000_000) -> FileEntry:
    return FileEntry(path=f"file-{number}", bytes=size, sha256="")


def name_it(entry: FileEntry, tick: Tick) -> Report:
    tick(entry.bytes)
    return Report((Problem(entry.path, f"was seen by {'another' if os.getpid() != PARENT else 'this'} process"),))


def die(entry: FileEntry, _: Tick) -> Report:
    os.kill(os.getpid(), signal.SIGKILL)
    return Report(())


def fail(entry: FileEntry, _: Tick) -> Report:
    raise KeyError(entry.path)


def wait_for_the_end(entry: FileEntry, tick: Tick) -> Report:
    """Fails for the first entry, and goes on for ever for any other unless it is told to stop."""
    while entry.path != "file-0":
        tick(1)
    raise KeyError(entry.path)


PARENT = int(os.environ.setdefault("TEST_CREW_PARENT", str(os.getpid())))


@pytest.mark.parametrize(("processes", "who"), [(1, "this"), (3, "another")])
def test_reports_come_in_the_order_of_the_entries(processes: int, who: str) -> None:
    entries = [entry(number, 20_000_000 * (number % 3 + 1)) for number in range(7)]
    done: list[int] = []
    reports = work_on_all(name_it, entries, processes=processes, tick=done.append)
    assert [str(*report.problems) for report in reports] == [
        f"file-{number}: was seen by {who} process" for number in range(7)
    ]
    assert sum(done) == sum(each.bytes for each in entries)


def test_little_work_is_done_here() -> None:
    (report, _) = work_on_all(name_it, [entry(0, 100), entry(1, 100)], processes=8, tick=lambda count: None)
    assert str(*report.problems) == "file-0: was seen by this process"
    assert work_on_all(name_it, [], processes=8, tick=lambda count: None) == []


def test_a_killed_process_ends_the_work_with_a_reason() -> None:
    message = "a process that checked files was killed, perhaps for want of memory; try --processes 1"
    with pytest.raises(ShardsmithError, match=message):
        work_on_all(die, [entry(0), entry(1)], processes=2, tick=lambda count: None)


def test_a_bug_in_the_work_is_not_hidden() -> None:
    with pytest.raises(KeyError, match="file-0"):
        work_on_all(fail, [entry(0), entry(1)], processes=2, tick=lambda count: None)


def test_the_others_stop_when_one_fails() -> None:
    with pytest.raises(KeyError, match="file-0"):
        work_on_all(wait_for_the_end, [entry(0, 40_000_000), entry(1)], processes=2, tick=lambda count: None)


def test_a_thread_can_call_too() -> None:
    reports: list[Report] = []
    entries = [entry(0), entry(1)]
    thread = threading.Thread(
        target=lambda: reports.extend(work_on_all(name_it, entries, processes=2, tick=lambda count: None))
    )
    thread.start()
    thread.join()
    assert len(reports) == 2


@thorough
@given(st.lists(st.integers(0, 40_000_000), max_size=40))
def test_batches_hold_every_entry_once_and_the_largest_first(sizes: list[int]) -> None:
    entries = [entry(number, size) for number, size in enumerate(sizes)]
    batches = make_batches(entries)
    places = [place for batch in batches for place, _ in batch]
    assert sorted(places) == list(range(len(sizes)))
    assert all(each is entries[place] for batch in batches for place, each in batch)
    assert [sizes[place] for place in places] == sorted(sizes, reverse=True)
    assert all(sum(each.bytes for _, each in batch[:-1]) < 16_000_000 for batch in batches)


def test_many_small_files_make_several_batches() -> None:
    assert [len(batch) for batch in make_batches([entry(n, 1) for n in range(450)])] == [200, 200, 50]
