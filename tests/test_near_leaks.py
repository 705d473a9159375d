"""Near leaks: pictures in two splits that look alike, with the closest there is."""

import csv
import json
import random
from pathlib import Path

import pytest
from conftest import make_config
from hypothesis import given
from hypothesis import strategies as st
from shards_data import brief
from test_leaks import SMALL, keys_of
from test_marking import photo, save
from test_update import run_append, run_build

from pipelines.finish.leak_check import leaks_in_words, read_leaks
from pipelines.finish.leaks import Row
from pipelines.finish.near_leaks import Picture, _read_clusters, pair_up
from pipelines.pictures.perceptual import LOOK_BYTES, distance
from shards.errors import ShardsmithError
from shards.manifest import Leaks


def look(bits: int) -> bytes:
    return bits.to_bytes(LOOK_BYTES, "little")


PICTURE = st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(1, 4))


@brief
@given(st.lists(PICTURE, max_size=12))
def test_every_picture_is_paired_with_the_closest_of_earlier_splits(rows):
    pictures = sorted(
        Picture(Row(split, f"k{number:02}", "", number, False, ""), look(bits), content)
        for number, (split, bits, content) in enumerate(rows)
    )
    expected = []
    for picture in pictures:
        earlier = [each for each in pictures if each.row.split < picture.row.split]
        ranked = sorted((distance(each.look, picture.look), each.row, each.content) for each in earlier)
        if ranked and ranked[0][0] <= 2 and ranked[0][2] != picture.content:
            expected.append((picture.row, ranked[0][1], ranked[0][0]))
    assert list(pair_up(pictures, 2)) == expected


def test_only_clusters_of_which_several_stay_are_looked_at(tmp_path):
    clusters = [[("a", True), ("b", False)], [("c", True), ("d\udcff", True)], [("e", True), ("f", True), ("g", False)]]
    lines = [json.dumps({"members": [{"key": key, "stays": stays} for key, stays in each]}) for each in clusters]
    path = tmp_path / "duplicates.jsonl"
    path.write_text("\n".join(lines))
    assert list(_read_clusters(path, 100)) == [{b"c": 1, b"d\xff": 1, b"e": 2, b"f": 2}]
    assert list(_read_clusters(path, 2)) == [{b"c": 1, b"d\xff": 1}, {b"e": 2, b"f": 2}]


def write_photos(root: Path, rows: list[tuple[str, int, int, str]]) -> Path:
    """A listing of photographs: name, which one, how well encoded, split."""
    with (root / "list.csv").open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["path", "label", "split"])
        for name, number, quality, split in rows:
            if not (root / name).exists():
                save(root / name, photo(number), quality=quality)
            out.writerow([name, "ab"[number % 2], split])
    return root / "list.csv"


PHOTOS = [(f"{n}.jpg", n, 95, "train") for n in range(4)]


def test_pictures_of_given_splits_that_look_alike_are_listed(tmp_path, capsys):
    rows = [*PHOTOS, ("like 2.jpg", 2, 60, "test"), ("same 3.jpg", 3, 95, "test"), ("7.jpg", 7, 95, "test")]
    dedupe = {"find": "near", "policy": "report"}
    config = make_config(write_photos(tmp_path, rows), tmp_path / "out", dedupe=dedupe, **SMALL)
    manifest = run_build(config)
    assert manifest.leaks == Leaks(exact=1, near=1, group=0, given=2)
    exact, near = read_leaks(tmp_path / "out", limit=9)
    assert (exact.kind, exact.keys) == ("exact", ("3.jpg", "same 3.jpg"))
    assert (near.kind, near.keys, near.splits) == ("near", ("2.jpg", "like 2.jpg"), ("train", "test"))
    assert near.distance is not None
    assert near.distance <= config.dedupe.limit
    assert str(near) == f"2.jpg (train) and like 2.jpg (test) look alike: {near.distance} of 256 bits differ"
    told = (
        "leaks: 1 exact copy and 1 near copy between 2 splits, listed in leaks.jsonl; 2 by splits that the source gives"
    )
    assert told in capsys.readouterr().out
    strict = make_config(tmp_path / "list.csv", tmp_path / "no", dedupe=dedupe, splits={"fail_on_leak": True}, **SMALL)
    with pytest.raises(
        ShardsmithError, match="^splits.fail_on_leak allows no leaks: 1 exact copy and 1 near copy between"
    ):
        run_build(strict)


def test_hash_splits_have_no_leaks_and_an_append_finds_those_that_the_source_makes(tmp_path):
    rows = [(f"{n} {q}.jpg", n, q, "") for n in range(8) for q in (60, 95)]
    random.Random(2).shuffle(rows)
    dedupe = {"find": "near", "policy": "report"}
    splits = {"fractions": {"train": 0.5, "test": 0.5}}
    config = make_config(write_photos(tmp_path, rows), tmp_path / "out", dedupe=dedupe, splits=splits, **SMALL)
    manifest = run_build(config)
    assert manifest.leaks == Leaks(near=0)
    assert leaks_in_words(manifest) == "none between 2 splits (exact copies and groups, near copies)"
    numbers = sorted({int(key[0]) for key in keys_of(tmp_path / "out", "train")})
    assert 1 < len(numbers) < 8
    # Whoever is new follows those it looks like, unless the source says otherwise.
    write_photos(tmp_path, [*rows, ("follows.jpg", numbers[0], 80, ""), ("strays.jpg", numbers[1], 70, "test")])
    manifest = run_append(config)
    assert "follows.jpg" in keys_of(tmp_path / "out", "train")
    assert manifest.leaks == Leaks(near=1, given=1)
    (leak,) = read_leaks(tmp_path / "out", limit=9)
    assert leak.keys[0] in {f"{numbers[1]} 60.jpg", f"{numbers[1]} 95.jpg"}
    assert leak.keys[1] == "strays.jpg"
