"""Leaks: what is in two splits is found, proven, listed pair by pair, and fails a build that asks for that."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_config
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, picture
from test_update import run_append, run_build

from pipelines.finish.leak_check import check_leaks, count_in_words, leaks_in_words, read_leaks
from pipelines.finish.leaks import EXACT, GROUP, Leak, Places, find_leaks
from pipelines.values import PlannedShard, Receipt
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.facts import RowWriter
from pipelines.writing.seen import SEEN_SCHEMA
from shards.errors import ShardsmithError
from shards.example import encode_example
from shards.manifest import Leaks, read_manifest
from shards.records import RecordWriter
from shards.verify import verify

SPLITS = ("train", "validation", "test")
Rows = list[tuple[str, int, str, bytes]]  # key, content, group, picture


def write_splits(root: Path, splits: dict[str, Rows], *, given_by_source: bool = False, per_shard: int = 3) -> Places:
    """Shards, and what is known of their inputs, without a build; every third row of a split is a reject."""
    folder = BuildFolder(root)
    folder.prepare(anew=True)
    shards = []
    for split, rows in splits.items():
        (root / split).mkdir(exist_ok=True)
        for start in range(0, max(len(rows), 1), per_shard):
            shard = PlannedShard(-1, split, start // per_shard)
            seen = RowWriter(SEEN_SCHEMA)
            with folder.shard(shard).open("wb") as stream, folder.index(shard).open("wb") as index:
                writer = RecordWriter(stream, index)
                for key, content, group, image in rows[start : start + per_shard]:
                    known = {"key": key.encode(), "group": group.encode(), "content": content, "given": given_by_source}
                    rejected = {"key": b"rejected", "reason": "truncated", "group": b"g", "content": 0, "given": False}
                    for row in (rejected, {"reason": "", **known}):
                        seen.add([row.get(name) for name in SEEN_SCHEMA.names])
                    writer.write(encode_example({"image": image, "key": key.encode()}))
            seen.save(folder.seen(shard))
            shards.append(shard)
    return Places(folder, list(splits), shards)


def brute_force(splits: dict[str, Rows]) -> list[tuple[str, str]]:
    """The pairs by comparing everything with everything."""
    pairs = []
    names = list(splits)
    for number, split in enumerate(names):
        for row in splits[split]:
            same = [
                (names.index(other), each[0]) for other in names for each in splits[other] if each[1::2] == row[1::2]
            ]
            if row[1] and min(same)[0] < number:
                pairs.append((number, row[0], min(same)[1]))
    return [(one, other) for _, other, one in sorted(pairs)]


ROW = st.tuples(st.integers(0, 6), st.sampled_from([b"red", b"blue"]))  # equal digests need not be equal pictures


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(ROW, max_size=8), min_size=3, max_size=3), st.sampled_from([3, 1000]), st.sampled_from([2, 1000])
)
def test_exact_leaks_are_those_that_comparing_all_pairs_finds(tmp_path_factory, parts, at_once, shared_at_once):
    splits = {
        name: [(f"{name}{number}", content, "", image) for number, (content, image) in enumerate(rows)]
        for name, rows in zip(SPLITS, parts, strict=True)
    }
    places = write_splits(tmp_path_factory.mktemp("x"), splits)
    found = list(find_leaks(EXACT, places, at_once=at_once, shared_at_once=shared_at_once))
    assert sorted(leak.keys for leak in found) == sorted(brute_force(splits))
    if shared_at_once == at_once == 1000:
        assert [leak.keys for leak in found] == brute_force(splits)
    assert {leak.distance for leak in found} <= {0}


def test_equal_digests_of_other_bytes_are_no_leak(tmp_path):
    places = write_splits(tmp_path, {"train": [("a", 7, "", b"one")], "test": [("b", 7, "", b"two")]})
    assert list(find_leaks(EXACT, places)) == []
    same = write_splits(tmp_path / "same", {"train": [("a", 7, "", b"one")], "test": [("b", 7, "", b"one")]})
    assert list(find_leaks(EXACT, same)) == [
        Leak("exact", ("a", "b"), ("train", "test"), ("train/train-00000", "test/test-00000"), (0, 0), distance=0)
    ]


def test_groups_in_two_splits_are_found_by_their_names(tmp_path):
    train = [("a", 1, "g", b""), ("b", 2, "h", b""), ("c", 3, "", b"")]
    test = [("d", 4, "", b""), ("f", 5, "g", b""), ("e", 6, "g", b"")]
    found = list(find_leaks(GROUP, write_splits(tmp_path, {"train": train, "test": test}, given_by_source=True)))
    assert [(leak.keys, leak.records, leak.group, leak.given) for leak in found] == [
        (("a", "e"), (0, 2), "g", True),
        (("a", "f"), (0, 1), "g", True),
    ]
    assert str(found[0]) == "a (train) and e (test) belong to group g"


def test_a_shard_that_cannot_be_read_is_named(tmp_path):
    places = write_splits(tmp_path, {"train": [("a", 7, "", b"one")], "test": [("b", 7, "", b"one")]})
    path = tmp_path / "train" / "train-00000.tfrecord"
    path.write_bytes(path.read_bytes()[:-3])
    told = "train-00000.tfrecord cannot be read: record 0 at byte 0: file ends 3 bytes before the record does; mend it"
    with pytest.raises(ShardsmithError, match=told):
        list(find_leaks(EXACT, places))


def receipts_of(places: Places) -> list[Receipt]:
    told: dict[str, Any] = {"listed": 0, "records": 0, "bytes": 0, "sha256": "", "index_sha256": "", "inputs": ""}
    told |= {"labels": {}, "rejected": {}, "formats": {}, "smallest": (0, 0), "largest": (0, 0)}
    return [Receipt(shard.split, shard.index, **told) for shard in places.shards]


def test_a_group_that_hashing_parted_is_our_mistake(tmp_path):
    splits = {"train": [("a", 1, "g", b"")], "test": [("b", 2, "g", b"")]}
    config = make_config("raw", tmp_path)
    places = write_splits(tmp_path, splits)
    told = (
        r"^1 member of a group between the splits:\n  a \(train\) and b \(test\) belong to group g\n"
        r"  this is a mistake of ours: please report it$"
    )
    with pytest.raises(ShardsmithError, match=told):
        check_leaks(receipts_of(places), places.splits, config)
    # An update cannot move what the dataset has: an input that is now in another group stays where it is.
    assert check_leaks(receipts_of(places), places.splits, config, older=tmp_path) == Leaks(group=1)
    places = write_splits(tmp_path, splits, given_by_source=True)
    assert check_leaks(receipts_of(places), places.splits, config) == Leaks(group=1, given=1)


def test_a_list_of_leaks_is_read_back_and_an_old_one_goes(tmp_path):
    many = {"train": [("a", 7, "", b"x")], "test": [(f"b{n}", 7, "", b"x") for n in range(9)]}
    places = write_splits(tmp_path, many)
    config = make_config("raw", tmp_path)
    assert check_leaks(receipts_of(places), places.splits, config) == Leaks(exact=9)
    assert read_leaks(tmp_path, limit=100) == list(find_leaks(EXACT, places))
    assert len(read_leaks(tmp_path, limit=4)) == 4
    places = write_splits(tmp_path, many | {"test": []})
    (tmp_path / "leaks.jsonl").write_text("of an interrupted run")
    assert check_leaks(receipts_of(places), places.splits, config) == Leaks()
    assert not (tmp_path / "leaks.jsonl").exists()
    assert read_leaks(tmp_path, limit=4) == []


SMALL: dict[str, Any] = {"image": {"resize": "exact:16", "encode": {"format": "png"}}}


def write_listing(root: Path, rows: list[tuple[str, int, str, str]]) -> Path:
    """A listing of pictures: name, which picture, split, group; labels take turns."""
    (root / "raw").mkdir(exist_ok=True)
    with (root / "raw" / "list.csv").open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["path", "label", "split", "group"])
        for number, (name, seed, split, group) in enumerate(rows):
            (root / "raw" / name).write_bytes(encoded(picture(seed), "png"))
            out.writerow([name, "ab"[number % 2], split, group])
    return root / "raw" / "list.csv"


GIVEN = [
    *((f"{n}.png", n, "train", "") for n in range(6)),
    ("copy.png", 3, "test", ""),
    ("fresh.png", 50, "test", "night"),
    ("sister.png", 51, "train", "night"),
]


def test_leaks_of_given_splits_are_listed_told_and_shown(tmp_path, capsys):
    manifest = run_build(make_config(write_listing(tmp_path, GIVEN), tmp_path / "out", **SMALL))
    assert manifest.leaks == Leaks(exact=1, near=None, group=1, given=2)
    lines = [json.loads(line) for line in (tmp_path / "out" / "leaks.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["keys"], line["splits"], line["distance"]) for line in lines] == [
        ("exact", ["3.png", "copy.png"], ["train", "test"], 0),
        ("group", ["sister.png", "fresh.png"], ["train", "test"], None),
    ]
    assert (
        "leaks: 1 exact copy and 1 member of a group between 2 splits, listed in leaks.jsonl; "
        "2 by splits that the source gives: mend these there; near copies were not looked for: dedupe: near\n"
    ) in capsys.readouterr().out
    assert "leaks.jsonl" in {entry.path for entry in manifest.files}
    assert verify(tmp_path / "out") == []
    page = (tmp_path / "out" / "report.html").read_text()
    section = page[page.index("<h2>Leaks</h2>") : page.index("<h2>Shuffle</h2>")]
    assert "3.png (train) and copy.png (test) are copies of each other" in section
    assert "sister.png (train) and fresh.png (test) belong to group night" in section
    titles = re.findall(r'title="([^"]+)"', section)
    assert titles == ["3.png", "copy.png", "sister.png", "fresh.png"]


def test_fail_on_leak_fails_the_build_and_keeps_the_list(tmp_path):
    source, out = write_listing(tmp_path, GIVEN), tmp_path / "out"
    config = make_config(source, out, splits={"fail_on_leak": True}, **SMALL)
    with pytest.raises(ShardsmithError) as caught:
        run_build(config)
    assert str(caught.value) == (
        "splits.fail_on_leak allows no leaks: 1 exact copy and 1 member of a group between the splits:\n"
        "  3.png (train) and copy.png (test) are copies of each other\n"
        "  sister.png (train) and fresh.png (test) belong to group night\n"
        f"  the full list is in {out}/leaks.jsonl; remove one of each pair from the sources and give the same command "
        "again, or run it with --set splits.fail_on_leak=false to allow them"
    )
    assert len((out / "leaks.jsonl").read_text().splitlines()) == 2
    assert not (out / "manifest.json").exists()
    write_listing(tmp_path, [row for row in GIVEN if row[0] not in ("copy.png", "sister.png")])
    assert run_build(config).leaks == Leaks()
    assert not (out / "leaks.jsonl").exists()


def test_copies_that_hashing_parts_are_counted_with_their_remedy(tmp_path, capsys):
    rows = [(f"{n}{twin}.png", n, "", "") for n in range(8) for twin in "ab"]
    config = make_config(write_listing(tmp_path, rows), tmp_path / "out", splits={"fractions": {"a": 0.5, "b": 0.5}})
    manifest = run_build(config)
    parted = len({row[1] for row in rows}) - sum(
        keys_of(tmp_path / "out", "a") >= {f"{n}a.png", f"{n}b.png"}
        or keys_of(tmp_path / "out", "b") >= {f"{n}a.png", f"{n}b.png"}
        for n in range(8)
    )
    assert parted > 0
    assert manifest.leaks == Leaks(exact=parted)
    told = f"leaks: {parted} exact copies between 2 splits, listed in leaks.jsonl; `dedupe: exact` keeps copies on one"
    assert told in capsys.readouterr().out


def keys_of(root: Path, split: str) -> set[str]:
    folder = BuildFolder(root)
    shards = [PlannedShard(-1, split, n) for n in range(len(read_manifest(root).split(split).shards))]
    places = Places(folder, [split], shards)
    return {key.decode() for shard in shards for key in places.read(shard, "key")["key"].to_pylist()}


def test_an_append_finds_leaks_against_what_was_there_and_loses_the_list_when_they_go(tmp_path):
    config = make_config(write_listing(tmp_path, GIVEN[:6] + GIVEN[7:8]), tmp_path / "out", **SMALL)
    assert run_build(config).leaks == Leaks()
    write_listing(tmp_path, [*GIVEN[:6], *GIVEN[7:8], ("late.png", 2, "test", "")])
    manifest = run_append(config)
    assert manifest.leaks == Leaks(exact=1, given=1)
    (leak,) = read_leaks(tmp_path / "out", limit=9)
    assert (leak.keys, leak.shards) == (("2.png", "late.png"), ("train/train-00000", "test/test-00001"))
    write_listing(tmp_path, GIVEN[:6] + GIVEN[7:8])
    assert run_append(config, allow_removals=True).leaks == Leaks()
    assert not (tmp_path / "out" / "leaks.jsonl").exists()
    assert verify(tmp_path / "out") == []


def test_a_new_member_of_an_old_group_follows_it_into_a_split_that_was_given(tmp_path):
    rows = [(f"{n}.png", n, ["a", "b"][n % 2], f"g{n}") for n in range(8)]
    splits = {"fractions": {"a": 0.5, "b": 0.5}, "given": ["a", "b"]}
    config = make_config(write_listing(tmp_path, rows), tmp_path / "out", splits=splits, **SMALL)
    run_build(config)
    write_listing(tmp_path, rows + [(f"{n} new.png", 20 + n, "", f"g{n}") for n in range(8)])
    assert run_append(config, allow_removals=True).leaks == Leaks()
    assert keys_of(tmp_path / "out", "a") == {f"{n}{end}.png" for n in range(0, 8, 2) for end in ("", " new")}


def test_leaks_in_words(built):
    assert leaks_in_words(built.manifest) == (
        "none between 2 splits (exact copies and groups; near copies were not looked for: dedupe: near)"
    )
    assert count_in_words(Leaks(exact=1, near=2, group=1)) == "1 exact copy and 2 near copies and 1 member of a group"
    looked = built.manifest.model_copy(update={"leaks": Leaks(near=0)})
    assert leaks_in_words(looked) == "none between 2 splits (exact copies and groups, near copies)"


@pytest.mark.parametrize(
    ("find", "version", "told"),
    [
        ("none", 1, "; `dedupe: exact` keeps copies on one side; near"),
        ("exact", 1, "; `dedupe: near` looks at every input; near"),
        ("exact", 2, "; what was there before never moves; near"),
    ],
)
def test_the_remedy_is_the_next_thing_to_try(built, find, version, told):
    settings = built.manifest.settings | {"dedupe": {"find": find}}
    changes = {"leaks": Leaks(exact=2, given=1), "settings": settings, "version": version}
    words = leaks_in_words(built.manifest.model_copy(update=changes))
    assert words.startswith(
        "2 exact copies between 2 splits, listed in leaks.jsonl; 1 by splits that the source gives:"
    )
    assert told in words


def test_an_append_that_leaks_leaves_the_dataset_as_it_was(tmp_path):
    config = make_config(
        write_listing(tmp_path, GIVEN[:6] + GIVEN[7:8]), tmp_path / "out", splits={"fail_on_leak": True}, **SMALL
    )
    before = run_build(config)
    write_listing(tmp_path, [*GIVEN[:6], *GIVEN[7:8], ("late.png", 2, "test", "")])
    listed = tmp_path / "out" / ".build" / "next" / "leaks.jsonl"
    with pytest.raises(ShardsmithError) as caught:
        run_append(config)
    assert f"2.png (train) and late.png (test) are copies of each other\n  the full list is in {listed};" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"\n  the dataset in {tmp_path}/out is still what it was")
    assert len(listed.read_text().splitlines()) == 1
    assert read_manifest(tmp_path / "out") == before
    lenient = config.model_copy(update={"splits": config.splits.model_copy(update={"fail_on_leak": False})})
    assert run_append(lenient).leaks == Leaks(exact=1, given=1)


def test_rows_of_features_are_compared_too(tmp_path):
    data = np.arange(40, dtype=np.float32).reshape(20, 2) // 20
    np.savez(tmp_path / "rows.npz", data=data, labels=np.arange(20) % 2)
    manifest = run_build(
        make_config(tmp_path / "rows.npz", tmp_path / "out", splits={"fractions": {"a": 0.5, "b": 0.5}})
    )
    assert manifest.leaks.exact == manifest.split("b").records
