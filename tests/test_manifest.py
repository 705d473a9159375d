"""manifest.json: what is written, what is read back, and what is refused."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from shards_data import save_manifest, thorough, write_dataset

from shards.errors import ShardsmithError, UsageError
from shards.manifest import (
    FORMAT_VERSION,
    Counts,
    FeatureEntry,
    FileEntry,
    HistoryEntry,
    Leaks,
    Manifest,
    ShardEntry,
    ShuffleEntry,
    SourceEntry,
    SplitEntry,
    parse_manifest,
    read_manifest,
)
from shards.records import WrittenShard

GOLDEN = Path(__file__).parent / "golden" / "manifest.json"

SMALL = Manifest(
    format_version=3,
    version=2,
    name="flowers",
    fingerprint="f" * 64,
    made_by={"shardsmith": "0.1.0", "pillow": "12.3.0"},
    settings={"image": {"resize": {"mode": "none", "size": None}}, "max_file_mb": 0.5, "salt": "größe"},
    label_kind="single",
    labels=("daisy", "löwenzahn"),
    features=(
        FeatureEntry(name="image", type="bytes", description="encoded picture"),
        FeatureEntry(name="label", type="int64", description="class id"),
        FeatureEntry(name="boxes", type="float", description="corners", length=None, per="box"),
    ),
    counts=Counts(
        listed=6,
        written=3,
        rejected={"truncated": 2},
        duplicates=1,
        sources=(SourceEntry(source="default", split="train", listed=6, written=3, rejected=2, duplicates=1),),
    ),
    splits=(
        SplitEntry(
            name="train",
            records=3,
            bytes=120,
            labels={"daisy": 2, "löwenzahn": 1},
            shards=(
                ShardEntry(
                    path="train/train-00000.tfrecord",
                    bytes=120,
                    sha256="a" * 64,
                    index="train/train-00000.idx",
                    index_sha256="b" * 64,
                    records=3,
                    inputs="c" * 64,
                ),
            ),
        ),
        SplitEntry(name="test", records=0, bytes=0, labels={}, shards=()),
    ),
    files=(FileEntry(path="schema.pbtxt", bytes=40, sha256="d" * 64),),
    retired=(FileEntry(path="train/train-00007.tfrecord", bytes=7, sha256="e" * 64),),
    history=(
        HistoryEntry(
            version=2,
            command="append",
            when="2026-01-02T03:04:05Z",
            fingerprint="f" * 64,
            inputs=6,
            added=2,
            removed=1,
            changed=3,
            written=3,
            new_shards=1,
            ended_shards=1,
            settings={"image.max_megapixels": ("50", "100")},
        ),
    ),
    leaks=Leaks(exact=2, near=None, group=1, given=3),
    shuffle=(
        ShuffleEntry(split="train", examples=3000, shards=4, source_z=-0.25, class_z=1.5, mix_p=0.61),
        ShuffleEntry(split="test", examples=3, shards=1),
    ),
)


def seal(values: dict[str, Any]) -> str:
    """The text of a manifest with these values and the checksum that belongs to them, by the rule and not the code."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return json.dumps(values | {"sha256": hashlib.sha256(canonical.encode()).hexdigest()})


def changed(**changes: Any) -> str:
    """The small manifest with other top-level values, sealed."""
    return seal(SMALL.model_dump(mode="json") | changes)


def test_text_is_the_on_disk_contract() -> None:
    # Datasets in the world look like this file. If this test fails, decide about FORMAT_VERSION before touching the
    # file: a reader that cannot read the old text needs a new version, and so does a text that old readers refuse.
    assert SMALL.to_json() == GOLDEN.read_text(encoding="utf-8")


def test_the_golden_file_is_read() -> None:
    assert parse_manifest(GOLDEN.read_text(encoding="utf-8"), place="golden") == SMALL
    assert FORMAT_VERSION == 3


def test_round_trip_of_a_dataset(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert read_manifest(str(tmp_path)).to_json() == (tmp_path / "manifest.json").read_text(encoding="utf-8")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@thorough
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=3), st.lists(st.text(max_size=5), max_size=3))
def test_round_trip_of_any_settings_and_labels(settings: dict[str, Any], labels: list[str]) -> None:
    manifest = SMALL.model_copy(update={"settings": settings, "labels": tuple(labels)})
    assert parse_manifest(manifest.to_json(), place="x") == manifest


def test_layout_of_the_text_does_not_matter() -> None:
    values = json.loads(SMALL.to_json())
    backwards = dict(reversed(values.items()))
    assert parse_manifest(json.dumps(backwards, indent=4), place="x") == SMALL


def test_the_checksum_is_over_all_other_keys() -> None:
    values = json.loads(SMALL.to_json())
    assert list(values)[-1] == "sha256"
    assert json.loads(seal({key: value for key, value in values.items() if key != "sha256"})) == values


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("größe", "grösse"),  # free text
        ("encoded picture", "encoded pictures"),
        ('"records": 3', '"records": 2'),
        ("daisy", "dAisy"),
        ('"max_file_mb": 0.5', '"max_file_mb": 0.25'),
        ('"sha256": "dddd', '"sha256": "dddf'),
    ],
)
def test_a_changed_value_anywhere_is_refused(old: str, new: str) -> None:
    text = SMALL.to_json()
    assert text.count(old) >= 1
    with pytest.raises(
        ShardsmithError,
        match=r"^m\.json is damaged: its content does not match its own sha256; "
        r"mend it with `python -m pipelines repair CONFIG`$",
    ):
        parse_manifest(text.replace(old, new), place="m.json")


@thorough
@given(st.integers(0, 8 * len(SMALL.to_json().encode()) - 1))
def test_a_flipped_bit_anywhere_is_refused(bit: int) -> None:
    content = bytearray(SMALL.to_json().encode())
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises((ShardsmithError, UnicodeDecodeError)):  # read_manifest turns the second into the first
        parse_manifest(content.decode(), place="x")


def test_a_manifest_without_checksum_is_refused() -> None:
    with pytest.raises(ShardsmithError, match="does not match its own sha256"):
        parse_manifest(SMALL.model_dump_json(), place="x")


def test_a_newer_format_is_refused_before_anything_else() -> None:
    text = json.dumps({"format_version": 4, "chapters": []})
    with pytest.raises(
        ShardsmithError, match=r"^m\.json has format version 4, this shardsmith reads up to 3; upgrade shardsmith$"
    ):
        parse_manifest(text, place="m.json")


@pytest.mark.parametrize("version", [-1, 0, 1])
def test_an_older_format_is_refused_before_anything_else(version: int) -> None:
    text = json.dumps({"format_version": version, "chapters": []})
    with pytest.raises(
        ShardsmithError, match=rf"^m\.json has format version {version}, this shardsmith reads 3; rebuild the dataset$"
    ):
        parse_manifest(text, place="m.json")


@pytest.mark.parametrize(
    ("kind", "summary"),
    [
        ("single", "of 2 classes"),
        ("multi", "with any of 2 labels"),
        ("none", "without labels"),
        ("regression", "with a target"),
    ],
)
def test_the_kind_of_label_in_words(kind: str, summary: str) -> None:
    assert SMALL.model_copy(update={"label_kind": kind}).label_summary == summary


WRONG = {
    "unknown key": (changed(colour="red"), "colour: Extra inputs are not permitted"),
    "text for a number": (changed(format_version="1"), "format_version: Input should be a valid integer"),
    "unknown kind": (
        changed(label_kind="double"),
        "label_kind: Input should be 'single', 'multi', 'none' or 'regression'",
    ),
    "missing key": (
        seal({key: value for key, value in SMALL.model_dump(mode="json").items() if key != "labels"}),
        "labels: Field required",
    ),
    "nested": (
        changed(counts={"listed": 1, "written": -1, "rejected": {}, "duplicates": 0, "sources": []}),
        "counts.written: Input should be greater than or equal to 0",
    ),
    "absolute path": (
        changed(files=[{"path": "/etc/passwd", "bytes": 1, "sha256": ""}]),
        "files.0.path: Value error, '/etc/passwd' does not lie inside the dataset",
    ),
    "path that climbs": (
        changed(files=[{"path": "train/../../x", "bytes": 1, "sha256": ""}]),
        "files.0.path: Value error, 'train/../../x' does not lie inside the dataset",
    ),
    "not JSON": ("{", "not JSON: Expecting property name"),
    "cut off": (SMALL.to_json()[:-200], "not JSON: "),
    "empty": ("", "not JSON: Expecting value"),
    "a list": ("[]", "not a JSON object"),
    "nested too deep": ("[" * 200_000, "not JSON: maximum recursion depth exceeded"),
}


@pytest.mark.parametrize(("text", "problem"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(ShardsmithError) as caught:
        parse_manifest(text, place="m.json")
    assert str(caught.value).startswith(f"m.json is damaged: {problem}")
    assert str(caught.value).endswith("; mend it with `python -m pipelines repair CONFIG`")
    assert caught.value.exit_code == 1


def test_a_directory_without_manifest_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(
        ShardsmithError,
        match=f"^no manifest: {tmp_path} is not a complete dataset; build it with `python -m pipelines build`$",
    ):
        read_manifest(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardsmithError, match=f"^no dataset at {tmp_path}/x: there is no such directory$"):
        read_manifest(tmp_path / "x")


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"\xff\xfe"), lambda path: path.mkdir()])
def test_an_unreadable_manifest_is_named(tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
    spoil(tmp_path / "manifest.json")
    with pytest.raises(ShardsmithError, match=f"^{tmp_path}/manifest.json cannot be read: "):
        read_manifest(tmp_path)


def test_a_split_is_found_by_name() -> None:
    assert SMALL.split("train").records == 3


def test_an_unknown_split_is_the_users_mistake_and_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"^the dataset has no split 'validation'; it has train, test$"):
        SMALL.split("validation")
    with pytest.raises(UsageError, match="it has none at all"):
        SMALL.model_copy(update={"splits": ()}).split("train")


def account(split: str, listed: int, written: int, rejected: int, duplicates: int) -> SourceEntry:
    return SourceEntry(
        source="web", split=split, listed=listed, written=written, rejected=rejected, duplicates=duplicates
    )


@pytest.mark.parametrize(
    ("total", "sources", "problems"),
    [
        ((0, 0, {}, 0), [], []),
        ((6, 3, {"truncated": 1, "too_large": 1}, 1), [account("train", 4, 2, 2, 0), account("test", 2, 1, 0, 1)], []),
        (
            (6, 3, {"truncated": 1}, 1),
            [account("train", 6, 3, 1, 1)],
            [
                "the dataset: 6 listed are not 3 written + 1 rejected + 1 duplicates",
                "source 'web' in split 'train': 6 listed are not 3 written + 1 rejected + 1 duplicates",
            ],
        ),
        (
            (6, 3, {"truncated": 2}, 1),
            [account("train", 5, 2, 2, 1)],
            ["the dataset: 6 listed, its sources have 5", "the dataset: 3 written, its sources have 2"],
        ),
    ],
)
def test_the_counts_say_where_an_input_is_not_in_exactly_one_account(
    total: tuple[int, int, dict[str, int], int], sources: list[SourceEntry], problems: list[str]
) -> None:
    listed, written, rejected, duplicates = total
    counts = Counts(listed=listed, written=written, rejected=rejected, duplicates=duplicates, sources=tuple(sources))
    assert counts.problems() == problems


def test_the_entry_of_a_written_shard_names_its_files() -> None:
    written = WrittenShard(records=3, bytes=120, sha256="a", index_sha256="b")
    assert ShardEntry.of("train/train-00007", written, inputs="c") == ShardEntry(
        path="train/train-00007.tfrecord",
        bytes=120,
        sha256="a",
        index="train/train-00007.idx",
        index_sha256="b",
        records=3,
        inputs="c",
    )


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SMALL.name = "other"


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    save_manifest(tmp_path, SMALL)
    first = (tmp_path / "manifest.json").read_bytes()
    save_manifest(tmp_path, read_manifest(tmp_path))
    assert (tmp_path / "manifest.json").read_bytes() == first
