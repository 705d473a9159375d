"""`python -m shards diff`: what differs is told as it is, what cannot be known is never told as a difference."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import (
    brief,
    change_manifest,
    change_split,
    features,
    flip_bit,
    make_counts,
    thorough,
    write_dataset,
    write_file,
    write_shard,
    write_split,
)

from shards import __main__ as command_line
from shards import diff as diff_module
from shards.diff import ABSENT, Change, compare, compare_datasets, flatten
from shards.diff_examples import KINDS, ExampleChanges, match_examples, pair_equal, unshared_shards
from shards.diff_table import Table
from shards.errors import ShardsmithError, run
from shards.example import Value, encode_example
from shards.manifest import FeatureEntry, read_manifest

Examples = Mapping[str, Sequence[Sequence[Mapping[str, Value]]]]  # the shards of each split


@pytest.fixture
def old(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "old")
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path, old: Path) -> Path:
    """A copy of the old dataset."""
    return Path(shutil.copytree(old, tmp_path / "new"))


def save_dataset(directory: Path, splits: Examples) -> Path:
    """A dataset with these examples."""
    write_dataset(directory, {})
    entries = tuple(write_split(directory, name, shards) for name, shards in splits.items())
    counts = make_counts({entry.name: entry.records for entry in entries} or {"train": 0})
    change_manifest(directory, splits=entries, counts=counts)
    return directory


def call(*arguments: object) -> int:
    """Runs the command in this process the way `python -m shards diff` does."""
    return run(lambda: command_line.main(["diff", *map(str, arguments)]))


def told(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> list[str]:
    """The lines that the command prints."""
    assert call(*arguments) == code
    output = capsys.readouterr()
    assert output.err == ""
    return output.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command says when there is trouble."""
    assert call(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def test_a_copy_is_the_same(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, old, new, code=0) == ["same: 7 examples in 2 splits, settings and labels"]
    assert told(capsys, old, old, code=0) == ["same: 7 examples in 2 splits, settings and labels"]
    result = json.loads("".join(told(capsys, old, new, "--json", code=0)))
    assert result["same"] is True
    assert result["old"] == {"directory": str(old), "examples": 7, "splits": 2}
    assert all(result[kind] == [] for kind in KINDS)


def test_examples_that_were_added_removed_changed_and_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = [features(number, image=b"%04d" % number) for number in range(8)]
    other = many[1] | {"image": b"three", "label": [2], "label_name": "玫瑰".encode()}
    old = save_dataset(tmp_path / "old", {"train": [many[:3], many[3:5]], "test": [many[5:7]]})
    new = save_dataset(tmp_path / "new", {"train": [[many[0], other], many[3:5], [many[5]]], "test": [many[6:]]})
    assert told(capsys, old, new) == [
        f"{old} -> {new}",
        "examples of a class:",
        "  train.löwenzahn: 2 -> 1",
        "  train.玫瑰: 1 -> 2",
        "  test.玫瑰: 1 -> 0",
        "  test.löwenzahn: 0 -> 1",
        "shards:",
        "  ~ train/train-00000.tfrecord",
        "  ~ test/test-00000.tfrecord",
        "  + train/train-00002.tfrecord",
        "added: 1 example (test 1)",
        "  test  photos/07.png",
        "removed: 1 example (train 1)",
        "  train  photos/02.png",
        "changed: 1 example (train 1)",
        "  train  photos/01.png: image '0001' -> 'three', label 1 -> 2, label_name 'löwenzahn' -> '玫瑰'",
        "moved: 1 example (test -> train 1)",
        "  test -> train  photos/05.png",
        "different: 1 added, 1 removed, 1 changed, 1 moved",
    ]


def test_settings_that_differ(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_manifest(old, settings={"image": {"resize": {"size": 64}}, "columns": {}, "salt": "größe", "limit": 1})
    change_manifest(
        new,
        settings={"image": {"resize": {"size": 96}}, "columns": {"age": {"type": "int"}}, "salt": None, "limit": True},
    )
    assert told(capsys, old, new) == [
        f"{old} -> {new}",
        "settings:",
        "  image.resize.size: 64 -> 96",
        '  salt: "größe" -> null',
        "  limit: 1 -> true",
        '  + columns.age.type: "int"',
        "different: 0 added, 0 removed, 0 changed, 0 moved; "
        'image.resize.size 64 -> 96, salt "größe" -> null, limit 1 -> true and 1 more',
    ]


def test_one_setting_is_told_in_the_last_line(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_manifest(old, settings={"image": {"resize": {"size": 64}}})
    change_manifest(new, settings={"image": {"resize": {"size": 96}}})
    assert told(capsys, old, new)[-1] == (
        "different: 0 added, 0 removed, 0 changed, 0 moved; image.resize.size 64 -> 96"
    )


def test_versions_features_labels_and_files_that_differ(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = list(read_manifest(old).features)
    age = FeatureEntry(name="age", type="int64", description="the age")
    change_manifest(
        new,
        name="tulips",
        made_by={"shardsmith": "0.2.0", "pillow": "12.3.0"},
        features=(*entries[:-2], entries[-2].model_copy(update={"type": "float", "length": None}), age),
        labels=("玫瑰", "daisy", "tulip"),
        files=(*read_manifest(old).files[1:], write_file(new, "notes.txt", b"hello")),
    )
    assert told(capsys, old, new) == [
        f'{old} -> {new}: name "flowers" -> "tulips"',
        "made by:",
        '  shardsmith: "0.1.0" -> "0.2.0"',
        '  + pillow: "12.3.0"',
        "features:",
        '  width.type: "int64" -> "float"',
        "  width.length: 1 -> null",
        "  - weight: float",
        "  + age: int64",
        "label ids:",
        "  daisy: 0 -> 1",
        "  - löwenzahn: 1",
        "  玫瑰: 2 -> 0",
        "  + tulip: 2",
        "files:",
        "  - schema.pbtxt",
        "  + notes.txt",
        'different: 0 added, 0 removed, 0 changed, 0 moved; name "flowers" -> "tulips"; '
        "also made by, features, label ids",
    ]


def test_other_shards_with_the_same_examples_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = [features(number, image=b"") for number in range(4)]
    old = save_dataset(tmp_path / "old", {"train": [many[:2], many[2:]]})
    new = save_dataset(tmp_path / "new", {"train": [many]})
    assert told(capsys, old, new) == [
        f"{old} -> {new}",
        "shards:",
        "  ~ train/train-00000.tfrecord",
        "  - train/train-00001.tfrecord",
        "different: 0 added, 0 removed, 0 changed, 0 moved; also shards",
    ]


def test_an_empty_split_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[features(0)]]})
    new = save_dataset(tmp_path / "new", {"train": [[features(0)]], "test": []})
    assert told(capsys, old, new) == [
        f'{old} -> {new}: splits ["train"] -> ["train", "test"]',
        'different: 0 added, 0 removed, 0 changed, 0 moved; splits ["train"] -> ["train", "test"]',
    ]


def test_a_renamed_split_has_moved_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"val": [[features(0), features(1)]]})
    new = save_dataset(tmp_path / "new", {"validation": [[features(0), features(1, label=[2])]]})
    assert told(capsys, old, new)[-4:] == [
        "moved: 2 examples (val -> validation 2)",
        "  val -> validation  photos/00.png",
        "  val -> validation  photos/01.png: label 1 -> 2",
        'different: 0 added, 0 removed, 0 changed, 2 moved; splits ["val"] -> ["validation"]',
    ]


def test_no_more_are_listed_than_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[features(0)]]})
    new = save_dataset(tmp_path / "new", {"train": [[features(number)] for number in range(12)]})
    assert told(capsys, old, new)[-13:] == [
        "added: 11 examples (train 11)",
        *(f"  train  photos/{number:02}.png" for number in range(1, 11)),
        "  and 1 more",
        "different: 11 added, 0 removed, 0 changed, 0 moved",
    ]
    assert told(capsys, old, new, "--examples", 1) == [
        f"{old} -> {new}",
        "counts:",
        "  listed: 1 -> 12",
        "  and 3 more",
        "examples of a class:",
        "  train.löwenzahn: 0 -> 4",
        "  and 2 more",
        "shards:",
        "  + train/train-00001.tfrecord",
        "  and 10 more",
        "added: 11 examples (train 11)",
        "  train  photos/01.png",
        "  and 10 more",
        "different: 11 added, 0 removed, 0 changed, 0 moved",
    ]
    assert told(capsys, old, new, "--examples", 0)[-3:] == [
        "added: 11 examples (train 11)",
        "  and 11 more",
        "different: 11 added, 0 removed, 0 changed, 0 moved",
    ]
    assert refused(capsys, old, new, "--examples", -1) == "error: --examples -1 must not be negative\n"


def test_what_changed_of_an_example_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before: dict[str, Value] = features(0, image=b"\x00\x01", weight=[0.0], row=[0.5] * 13, tags=[])
    after = before | {"image": b"\x00\x02", "weight": [-0.0], "row": [0.5] * 12 + [1.5], "tags": [b"a"], "age": [3]}
    old = save_dataset(tmp_path / "old", {"train": [[before]]})
    new = save_dataset(tmp_path / "new", {"train": [[after]]})
    row = ",".join(["0.5"] * 12) + ",... (13 values)"
    assert told(capsys, old, new)[-2] == (
        "  train  photos/00.png: age (not set) -> 3, image <2 bytes> -> other <2 bytes>, "
        f"row {row} -> other {row}, tags (empty) -> 'a', weight 0.0 -> -0.0"
    )


def test_a_record_that_is_only_encoded_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[features(0, weight=[float("nan")])]]})
    new = save_dataset(tmp_path / "new", {"train": [[]]})
    record = encode_example(features(0, weight=[float("nan")])) + encode_example({})
    shard = write_shard(new, "train/train-00000", [record])
    change_split(new, 0, shards=(shard,), records=1, bytes=shard.bytes, labels={"daisy": 1})
    assert told(capsys, old, new)[-2] == "  train  photos/00.png: the same values, encoded otherwise"


def test_keys_that_are_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[]]})
    new = save_dataset(tmp_path / "new", {"train": [[features(0, key=b"a\xff"), features(1, key=b"\x1b[2J")]]})
    assert told(capsys, old, new)[-3:-1] == ["  train  a\\xff", "  train  '\\x1b[2J'"]
    keys = [example["key"] for example in json.loads("".join(told(capsys, old, new, "--json")))["added"]]
    assert [key.encode("utf-8", "surrogateescape") for key in keys] == [b"a\xff", b"\x1b[2J"]


def test_json_tells_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[features(0), features(1)]], "test": [[features(2)]]})
    new = save_dataset(
        tmp_path / "new", {"train": [[features(1, label=[2]), *map(features, range(2, 20))]], "test": [[]]}
    )
    change_manifest(old, settings={"salt": "größe", "size": None})
    change_manifest(new, settings={"size": 96})
    result: dict[str, Any] = json.loads("\n".join(told(capsys, old, new, "--json", "--examples", 1)))
    shards = {side: read_manifest(side).splits for side in (old, new)}
    assert result == {
        "same": False,
        "old": {"directory": str(old), "examples": 3, "splits": 2},
        "new": {"directory": str(new), "examples": 19, "splits": 2},
        "dataset": [],
        "settings": [{"name": "salt", "old": "größe"}, {"name": "size", "old": None, "new": 96}],
        "made_by": [],
        "features": [],
        "labels": [],
        "counts": [
            {"name": "listed", "old": 3, "new": 19},
            {"name": "written", "old": 3, "new": 19},
            {"name": "sources.default.train.listed", "old": 2, "new": 19},
            {"name": "sources.default.train.written", "old": 2, "new": 19},
            {"name": "sources.default.test.listed", "old": 1, "new": 0},
            {"name": "sources.default.test.written", "old": 1, "new": 0},
        ],
        "classes": [
            {"name": "train.daisy", "old": 1, "new": 6},
            {"name": "train.löwenzahn", "old": 1, "new": 7},
            {"name": "test.玫瑰", "old": 1, "new": 0},
            {"name": "train.玫瑰", "old": 0, "new": 6},
        ],
        "shards": [
            {
                "name": f"{split}/{split}-00000.tfrecord",
                "old": shards[old][number].shards[0].sha256,
                "new": shards[new][number].shards[0].sha256,
            }
            for number, split in enumerate(("train", "test"))
        ],
        "files": [],
        "examples": {
            "added": [{"new_split": "train", "examples": 17}],
            "removed": [{"old_split": "train", "examples": 1}],
            "changed": [{"old_split": "train", "new_split": "train", "examples": 1}],
            "moved": [{"old_split": "test", "new_split": "train", "examples": 1}],
        },
        "added": [{"key": f"photos/{number:02}.png", "new_split": "train"} for number in range(3, 20)],
        "removed": [{"key": "photos/00.png", "old_split": "train"}],
        "changed": [
            {
                "key": "photos/01.png",
                "old_split": "train",
                "new_split": "train",
                "features": [{"name": "label", "old": "1", "new": "2"}],
            }
        ],
        "moved": [{"key": "photos/02.png", "old_split": "test", "new_split": "train"}],
    }


def test_shards_that_both_have_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared, lone = [features(0), features(1)], [features(2)]
    old = save_dataset(tmp_path / "old", {"train": [shared, lone]})
    new = save_dataset(tmp_path / "new", {"train": [shared]})
    for side in (old, new):
        path = side / "train/train-00000.tfrecord"
        path.write_bytes(bytes(path.stat().st_size))
    assert told(capsys, old, new)[-3:] == [
        "removed: 1 example (train 1)",
        "  train  photos/02.png",
        "different: 0 added, 1 removed, 0 changed, 0 moved",
    ]


def test_damage_is_trouble_and_no_difference(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_split(new, 0, shards=())
    change_split(new, 0, records=0, bytes=0, labels={})
    flip_bit(old / "train/train-00002.tfrecord", 8 * 20)
    advice = f"; `python -m shards verify {old}` lists all damage\n"
    path = old / "train/train-00002.tfrecord"
    assert refused(capsys, old, new) == f"error: {path}: record 0 at byte 0: data fails its checksum{advice}"
    (old / "train/train-00001.tfrecord").unlink()
    path = old / "train/train-00001.tfrecord"
    assert refused(capsys, old, new) == f"error: {path}: No such file or directory{advice}"


def test_a_shard_that_need_not_be_read_must_be_there(old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = new / "test/test-00000.tfrecord"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    advice = f"; `python -m shards verify {new}` lists all damage\n"
    assert refused(capsys, old, new) == (f"error: {path}: has {size - 1:,} bytes, the manifest says {size:,}{advice}")
    path.unlink()
    assert refused(capsys, old, new, "--json") == f"error: {path}: No such file or directory{advice}"


@pytest.mark.parametrize("content", [encode_example({"key": [1]}), encode_example({}), b"\xff"])
def test_a_record_without_a_key_is_trouble(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[features(0)]]})
    new = save_dataset(tmp_path / "new", {"train": [[]]})
    shard = write_shard(new, "train/train-00000", [encode_example(features(0)), content])
    change_split(new, 0, shards=(shard,), records=2, bytes=shard.bytes)
    problem = (
        "not a tf.train.Example: index out of range" if content == b"\xff" else "feature 'key' is not one bytes value"
    )
    offset = len(encode_example(features(0))) + 16
    assert refused(capsys, old, new) == (
        f"error: {new / shard.path}: record 1 at byte {offset}: {problem}; "
        f"`python -m shards verify {new}` lists all damage\n"
    )


def test_a_shard_with_other_records_than_the_manifest_says_is_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[]]})
    new = save_dataset(tmp_path / "new", {"train": [[features(0)]]})
    shard = read_manifest(new).splits[0].shards[0].model_copy(update={"records": 2})
    change_split(new, 0, shards=(shard,))
    assert refused(capsys, old, new) == (
        f"error: {new / shard.path}: has 1 records, the manifest says 2; "
        f"`python -m shards verify {new}` lists all damage\n"
    )


def test_what_is_not_a_dataset_is_trouble(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert refused(capsys, old, missing) == f"error: no dataset at {missing}: there is no such directory\n"
    missing.mkdir()
    assert refused(capsys, missing, old) == (
        f"error: no manifest: {missing} is not a complete dataset; build it with `python -m pipelines build`\n"
    )


def test_an_interrupt_is_no_difference(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(diff_module, "compare_datasets", interrupt)
    assert refused(capsys, old, new) == "error: interrupted\n"


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(["diff", "--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 same, 1 different, 2 trouble: a dataset is missing or damaged, or bad usage." in text


def test_a_record_that_changes_between_the_readings_is_noticed(tmp_path: Path) -> None:
    old = save_dataset(tmp_path / "old", {"train": [[features(0)]]})
    new = save_dataset(tmp_path / "new", {"train": [[features(0), features(1)]]})
    examples = compare_datasets(old, new).examples
    write_shard(new, "train/train-00000", [encode_example(features(0)), encode_example(features(2))])
    offset = len(encode_example(features(0))) + 16
    with pytest.raises(ShardsmithError) as caught:
        list(examples.describe("added"))
    assert str(caught.value) == (
        f"{new / 'train/train-00000.tfrecord'}: byte {offset} is not what it was a moment ago: something writes to the "
        f"dataset; `python -m shards verify {new}` lists all damage"
    )


def test_names_with_dots_are_not_mixed_up() -> None:
    old = flatten({"a.b": 1, "a": {"b": 2}})
    assert compare(old, flatten({"a.b": 2, "a": {"b": 2}})) == (Change("a.b", 1, 2),)
    assert compare(old, flatten({"a": {"b": 2}})) == (Change("a.b", 1, ABSENT),)


Numbered = Mapping[str, Sequence[Sequence[tuple[int, int]]]]  # of each example its key, and which record it has
numbered = st.dictionaries(
    st.sampled_from(["train", "test", "val"]),
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), max_size=4), max_size=3),
    max_size=3,
)


def save_numbered(directory: Path, splits: Numbered) -> Path:
    make = {
        split: [[features(key, image=b"%d" % record) for key, record in shard] for shard in shards]
        for split, shards in splits.items()
    }
    return save_dataset(directory, make)


def listed(splits: Numbered) -> Counter[tuple[str, str, int]]:
    """Split, key and record of every example."""
    return Counter(
        (split, f"photos/{key:02}.png", record) for split, shards in splits.items() for s in shards for key, record in s
    )


def reported(examples: ExampleChanges) -> dict[str, Counter[tuple[str | None, str | None, str]]]:
    return {
        kind: Counter((each.old_split, each.new_split, each.key) for each in examples.describe(kind)) for kind in KINDS
    }


@brief
@given(numbered, numbered)
def test_the_examples_told_are_those_that_differ(before: Numbered, after: Numbered) -> None:
    with TemporaryDirectory() as directory:
        old, new = save_numbered(Path(directory, "old"), before), save_numbered(Path(directory, "new"), after)
        examples = compare_datasets(old, new).examples
        told_of = reported(examples)
        assert {kind: sum(examples.count_splits(kind).values()) for kind in KINDS} == {
            kind: told_of[kind].total() for kind in KINDS
        }
    gone, come = listed(before) - listed(after), listed(after) - listed(before)
    left, there = Counter((s, k) for s, k, _ in gone.elements()), Counter((s, k) for s, k, _ in come.elements())
    assert told_of["changed"] == Counter((split, split, key) for split, key in (left & there).elements())
    left, there = left - there, there - left
    moved = Counter(key for _, key in left.elements()) & Counter(key for _, key in there.elements())
    assert Counter(key for *_, key in told_of["moved"].elements()) == moved
    assert all(old_split != new_split for old_split, new_split, _ in told_of["moved"])
    # What left is what was removed or moved away; what is there is what was added or moved here.
    assert left == Counter((s, key) for kind in ("removed", "moved") for s, _, key in told_of[kind].elements())
    assert there == Counter((s, key) for kind in ("added", "moved") for _, s, key in told_of[kind].elements())


@brief
@given(numbered, numbered)
def test_it_does_not_matter_how_many_are_matched_at_a_time(before: Numbered, after: Numbered) -> None:
    with TemporaryDirectory() as directory:
        old, new = save_numbered(Path(directory, "old"), before), save_numbered(Path(directory, "new"), after)
        shards = unshared_shards(read_manifest(old), read_manifest(new))
        tables = Table(old, shards[0]), Table(new, shards[1])
    whole, parts = match_examples(*tables), match_examples(*tables, rows_at_a_time=2)
    assert {kind: pairs.tolist() for kind, pairs in whole.pairs.items()} == {
        kind: pairs.tolist() for kind, pairs in parts.pairs.items()
    }


@brief
@given(numbered)
def test_moved_examples_are_matched_by_their_bytes_first(before: Numbered) -> None:
    after = {f"other {split}": shards for split, shards in before.items()}
    with TemporaryDirectory() as directory:
        old, new = save_numbered(Path(directory, "old"), before), save_numbered(Path(directory, "new"), after)
        moved = list(compare_datasets(old, new).examples.describe("moved"))
    assert len(moved) == listed(before).total()
    assert all(example.features == () for example in moved)


@thorough
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1))), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)))
)
def test_equal_rows_are_paired(old: list[tuple[int, int]], new: list[tuple[int, int]]) -> None:
    columns = list(np.array([*old, *new], dtype=np.uint64).reshape(-1, 2).T)
    (old_paired, new_paired), (old_left, new_left) = pair_equal(columns, len(old))
    assert [old[row] for row in old_paired] == [new[row] for row in new_paired]
    assert Counter(old[row] for row in old_paired) == Counter(old) & Counter(new)
    assert sorted([*old_paired, *old_left]) == list(range(len(old)))
    assert sorted([*new_paired, *new_left]) == list(range(len(new)))
