"""Verification: a good dataset is good, and every kind of damage is found and named."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import (
    SPLITS,
    change_manifest,
    change_split,
    features,
    flip_bit,
    make_counts,
    thorough,
    write_dataset,
    write_records,
    write_split,
)

from shards.errors import ShardsmithError
from shards.example import encode_example
from shards.manifest import Counts, FeatureEntry, FileEntry, ShardEntry, read_manifest
from shards.records import read_index, read_records
from shards.verify import Problem, verify

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


def test_each_shard_is_reported_when_it_is_done(dataset: Path) -> None:
    seen: list[ShardEntry] = []
    verify(dataset, tick=seen.append)
    assert [shard.path for shard in seen] == [
        f"{name}/{name}-{number:05}.tfrecord" for name, sizes in SPLITS.items() for number in range(len(sizes))
    ]


def test_several_processes_find_the_same_in_the_same_order(dataset: Path) -> None:
    flip_bit(dataset / FIRST, 100)
    (dataset / "test/test-00000.idx").unlink()
    found = messages(dataset)
    assert len(found) == 2
    seen: list[ShardEntry] = []
    assert [str(problem) for problem in verify(dataset, processes=2, tick=seen.append)] == found
    assert len(seen) == 4


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
    size = (dataset / path).stat().st_size
    (dataset / path).unlink()
    (dataset / path).mkdir()
    (problem,) = verify(dataset)
    assert problem.path == path
    assert problem.message == "cannot be read: Is a directory" or problem.message.endswith(f"manifest says {size}")


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
    assert messages(dataset) == ["train/train-00003.tfrecord: is not in the manifest"]


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
    change_split(dataset, 1, labels={"daisy": 9})
    assert messages(dataset) == [
        "manifest.json: split 'test' lists labels {'daisy': 9}, its records have {'玫瑰': 1, 'daisy': 1}"
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
    change_manifest(dataset, files=(FileEntry(path="report.html", bytes=1, sha256="0"),))
    assert messages(dataset) == ["report.html: the file is missing"]


def test_an_incomplete_dataset_is_refused(dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    with pytest.raises(ShardsmithError, match="no manifest"):
        verify(dataset)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("untouched")
    write_dataset(directory)
    return directory


@thorough
@given(st.data())
def test_any_flipped_bit_in_any_file_is_found(untouched: Path, draw: st.DataObject) -> None:
    files = sorted(path for path in untouched.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.draw(st.sampled_from(files))
    bit = draw.draw(st.integers(0, 8 * path.stat().st_size - 1))
    content = path.read_bytes()
    flip_bit(path, bit)
    try:
        check = refused if path.name == "manifest.json" else found_in
        check(untouched, path)
    finally:
        path.write_bytes(content)


def refused(directory: Path, _: Path) -> None:
    with pytest.raises(ShardsmithError, match=r"manifest\.json (is damaged|cannot be read|has format version)"):
        verify(directory)


def found_in(directory: Path, path: Path) -> None:
    problems = verify(directory)
    assert {problem.path for problem in problems} == {path.relative_to(directory).as_posix()}


def test_a_problem_reads_like_a_line_of_a_compiler() -> None:
    assert str(Problem("a/b.tfrecord", "is missing")) == "a/b.tfrecord: is missing"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: flip_bit(path, 1)])
def test_verifying_changes_nothing(dataset: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(dataset / FIRST)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    assert len(verify(dataset)) == 1
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before
