"""Does a piece of work for every file of a manifest, on several cores."""

import ctypes
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized

from shards.damage import Report, Tick
from shards.errors import ShardsmithError
from shards.manifest import FileEntry

Work = Callable[[FileEntry, Tick], Report]
Batch = list[tuple[int, FileEntry]]  # each with its place in the order

_BATCH_BYTES, _BATCH_ENTRIES = 16_000_000, 200  # to hand over work costs as much as to read a hundred kilobytes
_POLL_SECONDS = 0.2


def work_on_all(work: Work, entries: Sequence[FileEntry], *, processes: int, tick: Tick) -> list[Report]:
    """The reports in the order of the entries; `work` is sent to other processes if there are to be several."""
    batches = make_batches(entries)
    if processes == 1 or len(batches) < 2:
        return [work(entry, tick) for entry in entries]
    reports: dict[int, Report] = {}
    for batch in _share_out(work, batches, processes=processes, tick=tick):
        reports.update(batch)
    return [reports[place] for place in range(len(entries))]


def make_batches(entries: Sequence[FileEntry]) -> list[Batch]:
    """Shares of work, the largest files first, so that no core ends up alone with one."""
    batches: list[Batch] = []
    room = 0
    for place, entry in sorted(enumerate(entries), key=lambda item: -item[1].bytes):
        if room <= 0 or len(batches[-1]) == _BATCH_ENTRIES:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append((place, entry))
        room -= entry.bytes
    return batches


def _share_out(
    work: Work, batches: Sequence[Batch], *, processes: int, tick: Tick
) -> Iterator[list[tuple[int, Report]]]:
    context = get_context("spawn")  # forking is not safe beside the threads of whoever calls
    done, stop = context.Value("Q", 0), context.RawValue("b", 0)
    with ProcessPoolExecutor(
        min(processes, len(batches)), context, initializer=_start, initargs=(work, done, stop)
    ) as pool:
        try:
            with _interrupts_held():  # for good in the children: Ctrl-C is the parent's to handle
                futures = [pool.submit(_work_on, batch) for batch in batches]
            told = _Told(done, tick)
            for future in futures:
                _follow(future, told)
                yield future.result()
        except BrokenProcessPool as error:
            raise ShardsmithError(
                "a process that checked files was killed, perhaps for want of memory; try --processes 1"
            ) from error
        finally:
            stop.value = 1
            pool.shutdown(cancel_futures=True)


class _Told:
    """Passes on how much more all processes have done since it was last asked to."""

    def __init__(self, done: "Synchronized[int]", tick: Tick) -> None:
        self._done, self._tick, self._told = done, tick, 0

    def update(self) -> None:
        """Tells what is new."""
        now = self._done.get_obj().value  # without its lock, which a process that was killed may hold for ever
        self._tick(now - self._told)
        self._told = now


def _follow(future: "Future[list[tuple[int, Report]]]", told: _Told) -> None:
    while wait([future], timeout=_POLL_SECONDS).not_done:
        told.update()
    told.update()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Stopped(Exception):
    """Nobody waits for the result any more."""


@dataclass(frozen=True)
class _Worker:
    """What a process of the crew has at hand."""

    work: Work
    done: "Synchronized[int]"
    stop: ctypes.c_byte  # is 1 when nobody waits for the result any more

    def count(self, amount: int) -> None:
        """Adds to the work that was done."""
        if self.stop.value:
            raise _Stopped
        with self.done.get_lock():
            self.done.value += amount


_here: list[_Worker] = []  # one, in a process of the crew


def _start(work: Work, done: "Synchronized[int]", stop: ctypes.c_byte) -> None:
    _here.append(_Worker(work, done, stop))


def _work_on(batch: Batch) -> list[tuple[int, Report]]:
    (worker,) = _here
    return [(place, worker.work(entry, worker.count)) for place, entry in batch]
