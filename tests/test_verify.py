"""Verification: a good dataset is good, and every kind of damage is found and named."""

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Built
from hypothesis import given
from hypothesis import strategies as st
from shards_data import (
    brief,
    change_manifest,
    change_split,
    features,
    flip_bit,
    make_counts,
    png,
    thorough,
    write_dataset,
    write_file,
    write_records,
    write_split,
)

from shards.errors import ShardsmithError
from shards.example import encode_example
from shards.local import LOCAL, write_local
from shards.manifest import MANIFEST, Counts, FeatureEntry, FileEntry, read_manifest
from shards.records import read_index, read_records
from shards.verify import Level, Problem, amount_of_work, verify

FIRST = "train/train-00000.tfrecord"
FIRST_INDEX = "train/train-00000.idx"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Seven records in four shards, one of them empty, and two other files."""
    write_dataset(tmp_path / "flowers")
    return tmp_path / "flowers"


def messages(dataset: Path) -> list[str]:
    return [str(problem) for problem in verify(dataset)]


def records_of(path: Path) -> list[bytes]:
    with path.open("rb") as stream:
        return [record for _, record in read_records(stream)]


def rewrite_train(dataset: Path, shard: list[dict[str, Any]]) -> None:
    """Replaces the train split by one shard and lists it properly: what a wrong build would leave."""
    shutil.rmtree(dataset / "train")
    split = write_split(dataset, "train", [shard])
    manifest = read_manifest(dataset)
    counts = make_counts({"train": split.records, "test": manifest.splits[1].records})
    change_manifest(dataset, splits=(split, manifest.splits[1]), counts=counts)


def test_a_good_dataset_has_no_problems(dataset: Path) -> None:
    assert verify(dataset) == []


def test_a_moved_dataset_is_still_good(dataset: Path, tmp_path: Path) -> None:
    dataset.rename(tmp_path / "elsewhere")
    assert verify(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("splits", [{"train": ()}, {"train": (0,)}, {"train": (1,), "test": (0, 0)}, {}])
def test_empty_splits_and_shards_are_good(tmp_path: Path, splits: dict[str, tuple[int, ...]]) -> None:
    write_dataset(tmp_path, splits)
    assert verify(tmp_path) == []


@pytest.mark.parametrize("level", ["fast", "full", "decode"])
def test_all_work_is_reported_as_it_is_done(dataset: Path, level: Level) -> None:
    done: list[int] = []
    assert verify(dataset, level=level, tick=done.append) == []
    assert sum(done) == amount_of_work(read_manifest(dataset), level)
    assert len(done) >= 6, "four shards and two other files"


def test_work_inside_of_a_large_shard_is_reported_too(dataset: Path) -> None:
    rewrite_train(dataset, [features(number, image=bytes(900_000)) for number in range(4)])
    done: list[int] = []
    assert verify(dataset, tick=done.append) == []
    assert sum(done) > 3_600_000
    assert max(done) <= 2**20


def test_several_processes_find_the_same_in_the_same_order(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shards.crew._BATCH_BYTES", 1)
    flip_bit(dataset / FIRST, 100)
    (dataset / "test/test-00000.idx").unlink()
    found = messages(dataset)
    assert len(found) == 2
    done: list[int] = []
    assert [str(problem) for problem in verify(dataset, processes=2, tick=done.append)] == found
    assert sum(done) == amount_of_work(read_manifest(dataset), "full")


def test_a_flipped_bit_in_a_shard_names_file_and_record(dataset: Path) -> None:
    offset, size = read_index(dataset / FIRST_INDEX)[1].tolist()
    flip_bit(dataset / FIRST, 8 * (offset + size - 5))  # the last byte of the second record's data
    assert messages(dataset) == [f"{FIRST}: record 1 at byte {offset}: data fails its checksum"]


def test_a_flipped_bit_in_an_index_is_found(dataset: Path) -> None:
    flip_bit(dataset / FIRST_INDEX, 8 * 2)  # the first digit of the first size
    (problem,) = verify(dataset)
    assert problem.path == FIRST_INDEX
    assert problem.message.startswith("not an index: record 1 is listed at byte ")


def test_a_flipped_bit_in_another_file_is_found(dataset: Path) -> None:
    flip_bit(dataset / "transform_fn/saved_model.pb", 77)
    assert messages(dataset) == ["transform_fn/saved_model.pb: sha256 differs from the manifest's"]


def test_another_file_of_another_length_is_found(dataset: Path) -> None:
    (dataset / "schema.pbtxt").write_bytes(b"")
    assert messages(dataset) == ["schema.pbtxt: has 0 bytes, the manifest says 26"]


def test_a_shard_cut_inside_a_record_is_found(dataset: Path) -> None:
    offset, size = read_index(dataset / FIRST_INDEX)[2].tolist()
    (dataset / FIRST).write_bytes((dataset / FIRST).read_bytes()[:-10])
    assert offset + size == read_manifest(dataset).splits[0].shards[0].bytes
    assert messages(dataset) == [f"{FIRST}: record 2 at byte {offset}: file ends 10 bytes before the record does"]


def test_a_shard_cut_between_records_is_found(dataset: Path) -> None:
    size = read_manifest(dataset).splits[0].shards[0].bytes
    offset = int(read_index(dataset / FIRST_INDEX)[2, 0])
    (dataset / FIRST).write_bytes((dataset / FIRST).read_bytes()[:offset])
    assert messages(dataset) == [f"{FIRST}: has 2 records in {offset} bytes, the manifest says 3 in {size}"]


def test_an_emptied_shard_is_found(dataset: Path) -> None:
    size = read_manifest(dataset).splits[0].shards[0].bytes
    (dataset / FIRST).write_bytes(b"")
    assert messages(dataset) == [f"{FIRST}: has 0 records in 0 bytes, the manifest says 3 in {size}"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (FIRST, "the shard is missing"),
        (FIRST_INDEX, "the index is missing"),
        ("train/train-00001.tfrecord", "the shard is missing"),  # one without records
        ("schema.pbtxt", "the file is missing"),
    ],
)
def test_a_missing_file_is_found(dataset: Path, path: str, message: str) -> None:
    (dataset / path).unlink()
    assert messages(dataset) == [f"{path}: {message}"]


@pytest.mark.parametrize("path", [FIRST, FIRST_INDEX, "schema.pbtxt"])
def test_a_file_that_cannot_be_read_is_found(dataset: Path, path: str) -> None:
    (dataset / path).unlink()
    (dataset / path).mkdir()
    assert messages(dataset) == [f"{path}: cannot be read: Is a directory"]


def test_all_damage_is_listed_not_only_the_first(dataset: Path) -> None:
    (dataset / FIRST).unlink()
    (dataset / FIRST_INDEX).unlink()
    flip_bit(dataset / "test/test-00000.tfrecord", 3)
    (dataset / "schema.pbtxt").unlink()
    assert messages(dataset) == [
        f"{FIRST}: the shard is missing",
        f"{FIRST_INDEX}: the index is missing",
        "test/test-00000.tfrecord: record 0 at byte 0: length fails its checksum",
        "schema.pbtxt: the file is missing",
    ]


def test_a_shard_that_the_manifest_does_not_know_is_found(dataset: Path) -> None:
    write_records(dataset / "train/train-00003.tfrecord", [])
    assert messages(dataset) == [
        "train/train-00003.idx: is not in the manifest",
        "train/train-00003.tfrecord: is not in the manifest",
    ]


def test_records_in_another_order_are_found(dataset: Path) -> None:
    # Of equal length, so that the index fits the shard.
    rewrite_train(dataset, [features(0), features(3)])
    assert verify(dataset) == []
    a, b = records_of(dataset / FIRST)
    assert len(a) == len(b)
    write_records(dataset / FIRST, [b, a])
    assert messages(dataset) == [
        f"{FIRST}: sha256 differs from the manifest's, though every record is intact: replaced file?"
    ]


def test_records_of_other_lengths_in_another_order_are_found_in_the_index_too(dataset: Path) -> None:
    write_records(dataset / FIRST, reversed(records_of(dataset / FIRST)))
    assert messages(dataset) == [
        f"{FIRST}: sha256 differs from the manifest's, though every record is intact: replaced file?",
        f"{FIRST_INDEX}: sha256 differs from the manifest's",
    ]


def test_an_index_of_another_shard_is_found(dataset: Path) -> None:
    shutil.copy(dataset / "train/train-00002.idx", dataset / FIRST_INDEX)
    assert messages(dataset) == [f"{FIRST_INDEX}: lists 2 records, the shard has 3"]


def test_an_index_with_another_last_record_is_found(dataset: Path) -> None:
    rows = read_index(dataset / FIRST_INDEX).tolist()
    offset, size = rows[2]
    text = "".join(f"{o} {s}\n" for o, s in [*rows[:2], (offset, size + 1)])
    (dataset / FIRST_INDEX).write_text(text)
    assert messages(dataset) == [
        f"{FIRST_INDEX}: record 2 is listed at byte {offset} with {size + 1} bytes, "
        f"the shard has it at byte {offset} with {size}"
    ]


def test_a_label_id_that_is_not_its_name_is_found(dataset: Path) -> None:
    rewrite_train(dataset, [features(0), features(1, label=[2]), features(2)])
    (problem,) = verify(dataset)
    assert problem.path == FIRST
    assert problem.message.startswith("record 1 at byte ")
    assert problem.message.endswith(": label 2 is not 'löwenzahn'")


@pytest.mark.parametrize("label", [-1, 3, 2**62])
def test_a_label_id_that_does_not_exist_is_found(dataset: Path, label: int) -> None:
    rewrite_train(dataset, [features(0, label=[label])])
    assert messages(dataset) == [f"{FIRST}: record 0 at byte 0: label {label} is not 'daisy'"]


def test_a_label_name_that_is_not_text_is_found(dataset: Path) -> None:
    rewrite_train(dataset, [features(0)])
    example = features(0, label_name=b"\xff")
    write_records(dataset / FIRST, [encode_example(example)])
    assert messages(dataset)[0] == f"{FIRST}: record 0 at byte 0: label 0 is not '\\\\xff'"


CONTENTS = {
    "missing feature": ({"height": []}, "feature 'height' is not one int64 value"),
    "two values": ({"key": [b"a", b"b"]}, "feature 'key' is not one bytes value"),
    "another type": ({"width": [6.0]}, "feature 'width' is not one int64 value"),
    "integer for float": ({"weight": [1]}, "feature 'weight' is not one float value"),
    "no label": ({"label": []}, "feature 'label' is not one int64 value"),
}


@pytest.mark.parametrize(("changes", "message"), CONTENTS.values(), ids=CONTENTS)
def test_a_feature_that_is_not_as_promised_is_found(dataset: Path, changes: dict[str, Any], message: str) -> None:
    rewrite_train(dataset, [features(0), features(1, **changes)])
    (problem,) = verify(dataset)
    assert problem.path == FIRST
    assert problem.message.startswith("record 1 at byte ")
    assert problem.message.endswith(f": {message}")


def test_a_feature_that_is_absent_is_found(dataset: Path) -> None:
    example = features(0)
    del example["weight"]
    rewrite_train(dataset, [example])
    assert messages(dataset) == [f"{FIRST}: record 0 at byte 0: feature 'weight' is not one float value"]


BOXES = (
    FeatureEntry(name="boxes", type="float", description="the boxes", length=None, per="box"),
    FeatureEntry(name="kind", type="bytes", description="of each box", length=None, per="box"),
)
ONE_BOX = [0.0, 0.25, 0.5, 1.0]
BOXED: dict[str, tuple[list[float], list[bytes], str]] = {
    "no box": ([], [], ""),
    "one box": (ONE_BOX, [b"a"], ""),
    "two boxes": (ONE_BOX * 2, [b"a", b"b"], ""),
    "half a box": (ONE_BOX[:2], [b"a"], "feature 'boxes' has 2 values, which are no boxes of four"),
    "outside": ([0.0, 0.0, 1.5, 1.0], [b"a"], "box 0 is 0, 0, 1.5, 1: not inside the picture"),
    "upside down": ([*ONE_BOX, 0.5, 0.0, 0.25, 1.0], [b"a", b"b"], "box 1 is 0.5, 0, 0.25, 1: not inside the picture"),
    "no number": ([math.nan, 0.0, 1.0, 1.0], [b"a"], "box 0 is nan, 0, 1, 1: not inside the picture"),
    "out of step": (ONE_BOX, [b"a", b"b"], "feature 'kind' has 2 values for 1 boxes"),
}


@pytest.mark.parametrize(("boxes", "kinds", "message"), BOXED.values(), ids=BOXED)
def test_boxes_must_be_boxes_and_their_columns_in_step(
    dataset: Path, boxes: list[float], kinds: list[bytes], message: str
) -> None:
    change_manifest(dataset, features=(*read_manifest(dataset).features, *BOXES))
    rewrite_train(dataset, [features(0, boxes=boxes, kind=kinds)])
    found = [problem for problem in messages(dataset) if problem.startswith(FIRST)]
    assert found == ([f"{FIRST}: record 0 at byte 0: {message}"] if message else [])


SEVERAL: dict[str, tuple[list[int], list[bytes], str]] = {
    "none": ([], [], ""),
    "two": ([0, 1], [b"daisy", "löwenzahn".encode()], ""),
    "another name": ([0, 1], [b"daisy", b"daisy"], "label 1 is not 'daisy'"),
    "one name less": ([0, 1], [b"daisy"], "2 labels have 1 names"),
}


@pytest.mark.parametrize(("numbers", "names", "message"), SEVERAL.values(), ids=SEVERAL)
def test_several_labels_are_checked_one_by_one(
    dataset: Path, numbers: list[int], names: list[bytes], message: str
) -> None:
    entries = [
        entry.model_copy(update={"length": None}) if entry.name.startswith("label") else entry
        for entry in read_manifest(dataset).features
    ]
    change_manifest(dataset, features=tuple(entries), label_kind="multi")
    write_records(dataset / FIRST, [encode_example(features(0, label=numbers, label_name=names))])
    found = [problem for problem in messages(dataset) if "record 0" in problem and problem.startswith(FIRST)]
    assert found == ([f"{FIRST}: record 0 at byte 0: {message}"] if message else [])


def test_a_target_of_another_length_is_found(dataset: Path) -> None:
    target = FeatureEntry(name="target", type="float", description="the target", length=2)
    change_manifest(dataset, features=(*read_manifest(dataset).features, target))
    rewrite_train(dataset, [features(0, target=[1.0, 2.0]), features(1, target=[1.0])])
    (problem,) = (problem for problem in verify(dataset) if problem.path == FIRST)
    assert problem.message.endswith(": feature 'target' is not 2 float values")


def test_labels_are_checked_even_if_the_manifest_lists_no_features(dataset: Path) -> None:
    change_manifest(dataset, features=())
    assert verify(dataset) == []
    rewrite_train(dataset, [features(0, label=[1])])
    assert messages(dataset) == [f"{FIRST}: record 0 at byte 0: label 1 is not 'daisy'"]


def test_a_record_that_is_no_example_is_found(dataset: Path) -> None:
    write_records(dataset / FIRST, [b"hello", *records_of(dataset / FIRST)[1:]])
    assert messages(dataset)[0].startswith(f"{FIRST}: record 0 at byte 0: not a tf.train.Example: ")


def test_a_wrong_count_of_a_shard_is_found(dataset: Path) -> None:
    shards = read_manifest(dataset).splits[0].shards
    wrong = shards[0].model_copy(update={"records": 4})
    change_split(dataset, 0, shards=(wrong, *shards[1:]))
    size = sum(shard.bytes for shard in shards)
    assert messages(dataset) == [
        f"manifest.json: split 'train' has 5 records in {size} bytes, its shards have 6 in {size}",
        f"{FIRST}: has 3 records in {shards[0].bytes} bytes, the manifest says 4 in {shards[0].bytes}",
    ]


def test_wrong_bytes_of_a_split_are_found(dataset: Path) -> None:
    size = read_manifest(dataset).splits[0].bytes
    change_split(dataset, 0, bytes=1)
    assert messages(dataset) == [f"manifest.json: split 'train' has 5 records in 1 bytes, its shards have 5 in {size}"]


def test_wrong_label_counts_are_found(dataset: Path) -> None:
    change_split(dataset, 1, labels={"daisy": 9, "玫瑰": 1})
    assert messages(dataset) == ["manifest.json: split 'test' lists 9 examples of 'daisy', its records have 1"]
    change_split(dataset, 1, labels={"tulip": 2})
    assert messages(dataset) == [
        "manifest.json: split 'test' lists 0 examples of 'daisy', its records have 1, and 2 other labels differ"
    ]


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (
            make_counts({"train": 5, "test": 2}).model_copy(update={"duplicates": 1}),
            [
                "the accounting does not hold: the dataset: 7 listed are not 7 written + 0 rejected + 1 duplicates",
                "the accounting does not hold: the dataset: 1 duplicates, its sources have 0",
            ],
        ),
        (
            make_counts({"train": 6, "test": 2}),
            [
                "counts.written is 8, the splits have 7 records",
                "split 'train' has 5 records, its sources have 6",
            ],
        ),
        (
            make_counts({"train": 4, "test": 3}),
            ["split 'train' has 5 records, its sources have 4", "split 'test' has 2 records, its sources have 3"],
        ),
    ],
)
def test_a_wrong_accounting_is_found(dataset: Path, counts: Counts, found: list[str]) -> None:
    change_manifest(dataset, counts=counts)
    assert messages(dataset) == [f"manifest.json: {message}" for message in found]


def test_a_file_in_the_manifest_that_was_never_written_is_found(dataset: Path) -> None:
    files = (*read_manifest(dataset).files, FileEntry(path="report.html", bytes=1, sha256="0"))
    change_manifest(dataset, files=files)
    assert messages(dataset) == ["report.html: the file is missing"]


def test_files_of_the_version_before_are_checked_like_others(dataset: Path) -> None:
    paths = ["train/train-00003.tfrecord", "train/train-00003.idx"]
    change_manifest(dataset, retired=tuple(write_file(dataset, path, path.encode()) for path in paths))
    assert verify(dataset) == []
    flip_bit(dataset / paths[0], 9)
    (dataset / paths[1]).unlink()
    assert messages(dataset) == [f"{paths[0]}: sha256 differs from the manifest's", f"{paths[1]}: the file is missing"]
    assert [str(problem) for problem in verify(dataset, level="fast")] == [f"{paths[1]}: the file is missing"]


def test_an_incomplete_dataset_is_refused(dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    with pytest.raises(ShardsmithError, match="no manifest"):
        verify(dataset)


@pytest.fixture(scope="module")
def untouched(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the real pipeline made."""
    directory = tmp_path_factory.mktemp("untouched") / "dataset"
    shutil.copytree(built.root, directory)
    assert verify(directory) == []
    return directory


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_the_real_dataset_has_every_kind_of_file(untouched: Path) -> None:
    names = {path.relative_to(untouched).as_posix() for path in files_of(untouched)}
    assert {"manifest.json", "report.html", "schema.pbtxt", "state/plan.json", LOCAL} <= names
    folders = {name.partition("/")[0] if "/seen/" not in name else "seen" for name in names if "/" in name}
    assert folders == {"train", "validation", "transform_fn", "rejected", "state", "seen"}


@contextmanager
def changed(*paths: Path) -> Iterator[None]:
    """Puts files back when the block ends."""
    contents = [path.read_bytes() for path in paths]
    try:
        yield
    finally:
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)


def cut(path: Path, place: int) -> None:
    path.write_bytes(path.read_bytes()[: place % path.stat().st_size])


def append(path: Path, place: int) -> None:
    path.write_bytes(path.read_bytes() + bytes((place % 256,)))


def delete(path: Path, _: int) -> None:
    path.unlink()


@thorough
@given(st.data(), st.sampled_from([flip_bit, flip_bit, flip_bit, cut, append, delete]), st.integers(0, 2**30))
def test_any_damage_to_any_file_is_found_and_named(
    untouched: Path, draw: st.DataObject, damage: Callable[[Path, int], None], place: int
) -> None:
    # By folder first: else nearly every example would go to the many small files in state.
    folder = draw.draw(st.sampled_from(sorted({path.parent for path in files_of(untouched)})))
    files = [path for path in files_of(untouched) if path.parent == folder and path.stat().st_size]
    path = draw.draw(st.sampled_from(files))
    with changed(path):
        damage(path, place)
        check = refused if path == untouched / MANIFEST and not spelled_otherwise(path) else found_in
        check(untouched, path)
    assert verify(untouched, level="fast") == []


def spelled_otherwise(manifest: Path) -> bool:
    """Whether the manifest still says the same."""
    try:
        read_manifest(manifest.parent)
    except ShardsmithError:
        return False
    return True


def refused(directory: Path, _: Path) -> None:
    with pytest.raises(ShardsmithError, match=r"manifest(\.json (is damaged|cannot be read|has format version)|:)"):
        verify(directory)


def found_in(directory: Path, path: Path) -> None:
    problems = verify(directory)
    assert {problem.path for problem in problems} == {path.relative_to(directory).as_posix()}


@brief
@given(st.data())
def test_two_swapped_shards_are_found_and_named(untouched: Path, draw: st.DataObject) -> None:
    shards = [untouched / shard.path for split in read_manifest(untouched).splits for shard in split.shards]
    one, other = draw.draw(st.lists(st.sampled_from(shards), min_size=2, max_size=2, unique=True))
    with changed(one, other):
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
        shards_named = {problem.path for problem in verify(untouched)} - {MANIFEST}
        assert {path.removesuffix(".idx").removesuffix(".tfrecord") for path in shards_named} == {
            path.relative_to(untouched).with_suffix("").as_posix() for path in (one, other)
        }


@pytest.mark.parametrize(("letter", "spelling"), [(b"1e-05", b"1E-05"), (b"\\u001b", b"\\u001B")])
def test_a_flipped_bit_that_changes_only_the_spelling_of_the_manifest_is_found(
    dataset: Path, letter: bytes, spelling: bytes
) -> None:
    change_manifest(dataset, settings={"rate": 1e-05, "text": "\x1b"})
    content = (dataset / MANIFEST).read_bytes()
    assert content.count(letter) == 1
    (dataset / MANIFEST).write_bytes(content.replace(letter, spelling))
    assert messages(dataset) == [
        "manifest.json: is not spelled as a build writes it, though what it says is right: damaged or edited?"
    ]


@pytest.mark.parametrize("level", ["fast", "full"])
def test_files_that_belong_to_no_dataset_are_found_anywhere_but_in_the_work_folder(dataset: Path, level: Level) -> None:
    for name in ("notes.txt", "state/old.json", ".hidden/x", "train/.build/x", ".build/next/manifest.json", ".build/x"):
        (dataset / name).parent.mkdir(parents=True, exist_ok=True)
        (dataset / name).write_bytes(b"")
    (dataset / "empty").mkdir()
    (dataset / "elsewhere").symlink_to(dataset / "train")
    assert [str(problem) for problem in verify(dataset, level=level)] == [
        f"{name}: is not in the manifest"
        for name in (".hidden/x", "elsewhere", "notes.txt", "state/old.json", "train/.build/x")
    ]


def test_a_folder_that_cannot_be_listed_is_found(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dataset / "locked").mkdir()
    scan = os.scandir

    def refuse(path: str) -> Any:  # permissions do not stop root
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert messages(dataset) == ["locked: cannot be read: Permission denied"]


def test_machine_local_files_are_held_against_their_list(dataset: Path) -> None:
    seen = dataset / "state/seen/train-00000.arrow"
    seen.parent.mkdir(parents=True)
    seen.write_bytes(b"times")
    write_local(dataset, [seen])
    assert verify(dataset) == []
    flip_bit(seen, 3)
    assert verify(dataset, level="fast") == []
    assert messages(dataset) == ["state/seen/train-00000.arrow: sha256 differs from that in state/local.json"]
    shutil.rmtree(dataset / "state")
    assert verify(dataset) == []


def fast_messages(dataset: Path) -> list[str]:
    return [str(problem) for problem in verify(dataset, level="fast")]


def test_a_fast_check_reads_no_shard(dataset: Path) -> None:
    flip_bit(dataset / FIRST, 1000)
    flip_bit(dataset / "schema.pbtxt", 3)
    assert fast_messages(dataset) == []
    assert len(messages(dataset)) == 2


def test_a_fast_check_finds_what_sizes_and_indexes_show(dataset: Path) -> None:
    size = (dataset / FIRST).stat().st_size
    append(dataset / FIRST, 0)
    shutil.copy(dataset / "train/train-00002.idx", dataset / FIRST_INDEX)
    (dataset / "train/train-00002.tfrecord").unlink()
    (dataset / "train/train-00002.idx").unlink()
    flip_bit(dataset / "test/test-00000.idx", 0)
    cut(dataset / "schema.pbtxt", 3)
    third = read_manifest(dataset).splits[0].shards[2].bytes
    assert fast_messages(dataset) == [
        f"{FIRST}: has {size + 1} bytes, the manifest says {size}",
        f"{FIRST_INDEX}: lists 2 records in {third} bytes, the manifest says 3 in {size}",
        "train/train-00002.tfrecord: the shard is missing",
        "train/train-00002.idx: the index is missing",
        "test/test-00000.idx: not an index: record 0 is listed at byte 1 with 232 bytes; "
        "it must begin at byte 0 and have at least 16",
        "schema.pbtxt: has 3 bytes, the manifest says 26",
    ]


def test_a_fast_check_holds_an_index_against_its_checksum(dataset: Path) -> None:
    rows = read_index(dataset / FIRST_INDEX)
    first, second, third = rows[:, 1].tolist()
    assert first != second
    (dataset / FIRST_INDEX).write_text(f"0 {second}\n{second} {first}\n{first + second} {third}\n")
    assert fast_messages(dataset) == [f"{FIRST_INDEX}: sha256 differs from the manifest's"]


def test_a_fast_check_adds_up_what_the_manifest_says(dataset: Path) -> None:
    change_split(dataset, 0, records=4)
    assert [message.partition(":")[0] for message in fast_messages(dataset)] == ["manifest.json"] * 3


def decode_messages(dataset: Path) -> list[str]:
    return [str(problem) for problem in verify(dataset, level="decode")]


def test_decoding_finds_nothing_wrong_with_whole_pictures(dataset: Path, untouched: Path) -> None:
    assert decode_messages(dataset) == []
    assert decode_messages(untouched) == []


def test_only_decoding_finds_a_picture_that_is_none(dataset: Path) -> None:
    whole = png((1, 2, 3), (40, 30))
    rewrite_train(dataset, [features(0), features(1, image=b"no picture"), features(2, image=whole[:60])])
    assert messages(dataset) == []
    first, second = decode_messages(dataset)
    assert first.startswith(f"{FIRST}: record 1 at byte ")
    assert first.endswith(": the picture cannot be decoded: not a JPEG file")
    assert ": the picture cannot be decoded: " in second


def test_only_decoding_finds_a_picture_of_another_size(dataset: Path) -> None:
    rewrite_train(dataset, [features(0, image=png((1, 2, 3), (7, 5)))])
    assert messages(dataset) == []
    assert decode_messages(dataset) == [f"{FIRST}: record 0 at byte 0: the picture is 7x5, the record says 6x4"]


def test_decoding_needs_no_pictures(dataset: Path) -> None:
    change_manifest(dataset, features=(FeatureEntry(name="key", type="bytes", description="the key"),))
    assert decode_messages(dataset) == []


def test_a_problem_reads_like_a_line_of_a_compiler() -> None:
    assert str(Problem("a/b.tfrecord", "is missing")) == "a/b.tfrecord: is missing"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: flip_bit(path, 1)])
def test_verifying_changes_nothing(dataset: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(dataset / FIRST)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    assert len(verify(dataset)) == 1
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before
