"""What a dataset gives to its successor: records with everything the accounts know of them, and nothing doubtful."""

import dataclasses
import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from conftest import make_config, make_ref
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import BuildConfig
from pipelines.pictures.process import Made, Outcome, Refused, Task
from pipelines.planning.plan import Plan, Rebuilt, SplitPlan
from pipelines.values import Fault, InputRef, Location, PlannedShard
from pipelines.workspace.layout import BuildFolder, link_file, load_receipt, save_plan
from pipelines.writing.donor import Donor, rewrite_shard
from pipelines.writing.seen import Identities, _below, describe_location
from pipelines.writing.write import sort_refs, write_shard
from shards.files import hash_file
from shards.records import read_index

SHARD = PlannedShard(0, "train", 0)
PLAN = Plan(("a", "b"), {}, (SplitPlan("train", 10, 0, 0, (0,)),))


class Maker:
    """Makes records without pictures, and remembers of what; inputs of no bytes are refused."""

    count = 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def submit(self, tasks: list[Task], /) -> "Future[list[Outcome]]":
        self.asked += [task.ref.key for task in tasks]
        future: Future[list[Outcome]] = Future()
        future.set_result([self.make(task) for task in tasks])
        return future

    def make(self, task: Task) -> Outcome:
        size = task.ref.location.size
        if task.ref.fault or not size:
            return Refused(*(task.ref.fault or ("empty_file", "no bytes")))
        facts = ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [label.encode() for label in task.ref.labels])
        return Made(
            f"{task.ref.key} {task.label_ids}".encode(), facts, format="png", sides=(size, 2 * size),
            boxes_kept=size, boxes_dropped=1, truncated=size % 2 == 1,
        )  # fmt: skip


def refs_of(*sizes: int) -> list[InputRef]:
    return [make_ref(f"{n}.png", "ab"[n % 2], f"raw/{n}.png", size) for n, size in enumerate(sizes)]


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(output: Path) -> tuple[BuildFolder, BuildConfig]:
    folder = BuildFolder(output)
    folder.prepare(anew=False)
    save_plan(PLAN, folder.plan)
    return folder, make_config("raw", output)


def write_old(base: Path, refs: list[InputRef]) -> BuildFolder:
    folder, config = prepare(base / "old")
    write_shard(SHARD, refs, plan=PLAN, config=config, decoders=Maker(), watch=lambda *_: None)
    return folder


def write_new(base: Path, refs: list[InputRef], name: str = "new", plan: Plan = PLAN) -> tuple[BuildFolder, list[str]]:
    """Writes the shard as one that takes the place of the old one."""
    folder, config = prepare(base / name)
    maker = Maker()
    plan = dataclasses.replace(plan, rebuilt=(Rebuilt(SHARD, 0, len(refs)),), splits=())
    begun, past = Donor(base / name), Donor(base / "old")
    rewrite_shard(SHARD, refs, begun=begun, past=past, plan=plan, config=config, decoders=maker, watch=lambda *_: None)
    return folder, maker.asked


def write_again(base: Path, refs: list[InputRef], *, retry: bool = False, plan: Plan = PLAN) -> list[str]:
    """Goes on with the old build; returns what was processed."""
    maker = Maker()
    begun = Donor(base / "old", retry=retry)
    config = make_config("raw", base / "old")
    rewrite_shard(SHARD, refs, begun=begun, past=None, plan=plan, config=config, decoders=maker, watch=lambda *_: None)
    return maker.asked


def write_fresh(base: Path, refs: list[InputRef], plan: Plan = PLAN) -> BuildFolder:
    folder, config = prepare(base / "fresh")
    write_shard(SHARD, refs, plan=plan, config=config, decoders=Maker(), watch=lambda *_: None)
    return folder


def files(folder: BuildFolder) -> dict[str, str]:
    paths = [path for path in folder.root.rglob("*") if path.is_file() and ".build" not in path.parts]
    return {path.relative_to(folder.root).as_posix(): hash_file(path) for path in paths}


def test_records_come_with_all_that_the_accounts_know(base):
    write_old(base, refs_of(3, 0, 5, 6, 7))
    mended = refs_of(3, 4, 5, 6, 7)
    folder, asked = write_new(base, mended)
    assert asked == ["1.png"]
    assert files(folder) == files(write_fresh(base, mended))
    receipt = load_receipt(folder.receipt(SHARD))
    assert (receipt.kept_truncated, receipt.boxes_kept, receipt.boxes_dropped) == (3, 25, 5)
    assert (receipt.smallest, receipt.largest, receipt.formats) == ((3, 6), (7, 14), {"png": 5})
    assert folder.taken(SHARD).read_text() == "4 0 0"


def test_a_finished_shard_is_left_as_it_is(base):
    folder = write_old(base, refs_of(3, 4, 0))
    before = {path: path.stat().st_mtime_ns for path in folder.shard_files(SHARD)}
    assert write_again(base, refs_of(3, 4, 0)) == []
    assert {path: path.stat().st_mtime_ns for path in folder.shard_files(SHARD)} == before
    assert not folder.taken(SHARD).exists()


def test_a_shard_with_a_reject_is_finished_unless_rejects_are_tried_again(base):
    write_old(base, refs_of(3, 0, 5))
    assert write_again(base, refs_of(3, 0, 5)) == []
    assert write_again(base, refs_of(3, 0, 5), retry=True) == ["1.png"]


@pytest.mark.parametrize("lost", range(6))
def test_a_shard_without_one_of_its_files_is_not_finished(lost, base):
    folder = write_old(base, refs_of(3, 4, 0))
    expected = files(folder)
    folder.shard_files(SHARD)[lost].unlink()
    write_again(base, refs_of(3, 4, 0))
    assert files(folder) == expected


def test_a_shard_cut_short_is_not_finished(base):
    folder = write_old(base, refs_of(3, 4, 5))
    expected = files(folder)
    with folder.shard(SHARD).open("r+b") as stream:
        stream.truncate(20)
    assert write_again(base, refs_of(3, 4, 5)) != []
    assert files(folder) == expected


def test_a_shard_whose_label_ids_moved_is_not_finished(base):
    folder = write_old(base, refs_of(3, 4, 5))
    plan = Plan(("a", "aa", "b"), {}, PLAN.splits)
    assert write_again(base, refs_of(3, 4, 5), plan=plan) == ["1.png"]
    assert files(folder) == files(write_fresh(base, refs_of(3, 4, 5), plan))


@pytest.mark.parametrize(
    "change",
    [
        {"location": Location("raw/2.png", 9)},
        {"location": Location("raw/2.png", 5, modified=7)},
        {"location": Location("raw/other.png", 5)},
        {"location": Location("raw/2.png", 5, coding="deflate")},
        {"location": Location("raw/2.png", 5, form="|u1:1,5")},
        {"labels": ("b",)},
        {"target": (1.0,)},
        {"split": "train"},
        {"group": "g"},
        {"columns": (1,)},
        {"boxes": ((0.0, 0.0, 1.0, 1.0),)},
        {"fault": Fault("bad_row", "why")},
    ],
    ids=str,
)
def test_a_change_of_anything_makes_another_input(change, base):
    write_old(base, refs_of(3, 4, 5))
    refs = refs_of(3, 4, 5)
    refs[2] = refs[2]._replace(**change)
    folder, asked = write_new(base, refs)
    assert asked == ["2.png"]
    assert files(folder) == files(write_fresh(base, refs))


def test_a_label_with_another_id_is_made_again(base):
    write_old(base, refs_of(3, 4, 5, 6))
    plan = Plan(("a", "aa", "b"), {}, PLAN.splits)
    folder, asked = write_new(base, refs_of(3, 4, 5, 6), plan=plan)
    assert sorted(asked) == ["1.png", "3.png"]
    assert files(folder) == files(write_fresh(base, refs_of(3, 4, 5, 6), plan))


def test_what_is_damaged_is_made_again(base):
    old = write_old(base, refs_of(3, 4, 5, 0))
    refs = refs_of(3, 4, 5, 6)
    expected = files(write_fresh(base, refs))
    ordered = [ref.key for ref in sort_refs(refs_of(3, 4, 5))]
    offset = int(read_index(old.index(SHARD))[1][0])
    content = bytearray(old.shard(SHARD).read_bytes())
    content[offset + 13] ^= 1
    old.shard(SHARD).write_bytes(content)
    folder, asked = write_new(base, refs)
    assert sorted(asked) == sorted([ordered[1], "3.png"])
    assert files(folder) == expected
    for number, path in enumerate((old.index(SHARD), old.seen(SHARD), old.facts(SHARD))):
        whole = path.read_bytes()
        path.write_bytes(b"garbage")
        folder, asked = write_new(base, refs, name=f"new{number}")
        assert len(asked) == 4
        assert files(folder) == expected
        path.write_bytes(whole)


def test_where_links_cannot_be_made_files_are_copied(tmp_path, monkeypatch):
    (tmp_path / "old").write_bytes(b"content")
    monkeypatch.setattr(os, "link", _refuse)
    link_file(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == b"content"
    assert not os.path.samefile(tmp_path / "old", tmp_path / "new")


def _refuse(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


@pytest.mark.parametrize(
    ("source", "path", "location"),
    [
        ({"path": "data/photos"}, "data/photos/cat/1.jpg", "cat/1.jpg"),
        ({"path": "/data/photos/"}, "/data/photos/cat/1.jpg", "cat/1.jpg"),
        ({"path": "./data/list.csv"}, "data/pictures/1.jpg", "pictures/1.jpg"),
        ({"path": "list.csv"}, "pictures/1.jpg", "pictures/1.jpg"),
        ({"path": "/data/list.csv", "root": "/pictures"}, "/pictures/1.jpg", "1.jpg"),
        ({"path": "/data/list.csv"}, "/elsewhere/1.jpg", "/elsewhere/1.jpg"),
        ({"path": "/data/*/x/*.jpg"}, "/data/a/x/1.jpg", "a/x/1.jpg"),
        ({"path": "/data/set.tar"}, "/data/set.tar", "set.tar"),
        ({"path": "gs://bucket/photos"}, "gs://bucket/photos/cat/1.jpg", "cat/1.jpg"),
        ({"path": "gs://bucket/list.csv"}, "gs://bucket/cat/1.jpg", "cat/1.jpg"),
        ({"path": "s3://bucket/*.tar"}, "s3://bucket/a.tar", "a.tar"),
        ({"path": "module:function", "kind": "python"}, "out/.build/spool/000001.bin", "module:function"),
        ({"path": "/data/photos"}, "/data/photos/\udcff.jpg", "\\xff.jpg"),
    ],
)
def test_locations_are_told_relative_to_their_source(source, path, location):
    config = make_config(source.pop("path"), "out", source=source)
    spooled = "spool" in path
    assert describe_location(InputRef("k", Location(path, 7)), config) == location
    part = InputRef("k", Location(path, 7, 100))
    assert describe_location(part, config) == (location if spooled else f"{location}@100+7")


def test_members_of_a_file_that_was_touched_are_other_inputs(tmp_path):
    path = tmp_path / "set.npy"
    path.write_bytes(b"x" * 100)
    config = make_config(path, tmp_path / "out")
    refs = [InputRef(str(n), Location(str(path), 10, 10 * n)) for n in range(3)]
    before = [Identities(config).of(ref) for ref in refs]
    assert len(set(before)) == 3
    assert [Identities(config).of(ref) for ref in refs] == before
    os.utime(path, ns=(1, 1))
    assert not set(before) & {Identities(config).of(ref) for ref in refs}


def test_spooled_inputs_are_the_same_wherever_their_copies_lie():
    one, two = make_config("m:f", "a", source={"kind": "python"}), make_config("m:f", "b", source={"kind": "python"})
    first = Identities(one).of(InputRef("k", Location("a/.build/spool/000000.bin", 4, 0, content=77)))
    assert Identities(two).of(InputRef("k", Location("b/.build/spool/000003.bin", 4, 90, content=77))) == first
    assert Identities(two).of(InputRef("k", Location("b/.build/spool/000003.bin", 4, 90, content=78))) != first


def test_a_shard_whose_duplicates_changed_is_not_finished(base):
    refs = refs_of(3, 4, 5)
    same = refs[1]._replace(fault=Fault("duplicate", "it has the same bytes as another, which stays"))
    folder = write_old(base, [refs[0], same, refs[2]])
    assert load_receipt(folder.receipt(SHARD)).duplicates == 1
    assert write_again(base, [refs[0], same, refs[2]]) == []
    assert write_again(base, refs) == ["1.png"]  # the other one is gone
    assert load_receipt(folder.receipt(SHARD)).records == 3
    assert write_again(base, [refs[0], same, refs[2]]) == ["1.png"]  # and there again
    assert load_receipt(folder.receipt(SHARD)).duplicates == 1


@given(
    st.lists(st.sampled_from(["a", "b", "..", ".", "", "..x"]), min_size=1, max_size=4),
    st.lists(st.sampled_from(["a", "b", "..", ".", "", "..x"]), min_size=1, max_size=4),
)
def test_what_lies_below_a_folder_is_told_as_the_system_tells_it(folder, below):
    root, path = "/".join(folder) or ".", "/".join([*folder, *below]) or "."
    assert _below(path, root) == os.path.relpath(path, root)
