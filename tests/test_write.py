"""One shard: order, bytes, rejects and receipt, without a pipeline."""

import json
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
from conftest import make_config, make_ref
from pictures import encoded, picture

from pipelines.decoding.decoders import DecoderPool
from pipelines.planning.plan import Plan
from pipelines.planning.splits import order_hash
from pipelines.values import Fault, InputRef, Location, PlannedShard
from pipelines.workspace.layout import BuildFolder, load_receipt
from pipelines.writing.facts import read_facts
from pipelines.writing.write import GROUP_BYTES, GROUP_TASKS, group_refs, mark_duplicates, sort_refs, write_shard
from shards.example import decode_example
from shards.files import hash_file
from shards.records import read_index, read_records

SHARD = PlannedShard(number=0, split="train", index=3)
PLAN = Plan(labels=("a", "b"), label_counts={}, splits=())


@pytest.fixture
def refs(tmp_path: Path) -> list[InputRef]:
    refs = []
    for number in range(40):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(encoded(picture(number)))
        refs.append(
            make_ref(path.name, "ab"[number % 2], str(path), path.stat().st_size, columns=(number, "x" * number))
        )
    return refs


def write(refs: list[InputRef], output: Path, *, threads: int = 2, **sections: object):
    columns = {"number": {"type": "int"}, "text": {"type": "text"}}
    config = make_config(output.parent, output, columns=columns, **sections)
    folder = BuildFolder(output)
    folder.prepare(anew=False)
    (output / "train").mkdir()
    seen = []
    with closing(DecoderPool(config, threads)) as decoders:
        receipt = write_shard(SHARD, refs, plan=PLAN, config=config, decoders=decoders, watch=lambda *c: seen.append(c))
    assert receipt == load_receipt(folder.receipt(SHARD))
    return folder, receipt, seen


def read_shard(folder: BuildFolder) -> list[dict]:
    with folder.shard(SHARD).open("rb") as stream:
        return [decode_example(record) for _, record in read_records(stream)]


def test_a_shard_holds_its_refs_in_hash_order(refs, tmp_path):
    folder, receipt, _ = write(refs, tmp_path / "out", image={"resize": "exact:20x10"})
    examples = read_shard(folder)
    assert [e["key"][0].decode() for e in examples] == sorted((r.key for r in refs), key=order_hash)
    by_key = {e["key"][0].decode(): e for e in examples}
    example = by_key["7.jpg"]
    assert sorted(example) == ["height", "image", "key", "label", "label_name", "number", "text", "width"]
    assert (example["label"], example["label_name"]) == ([1], [b"b"])
    assert (example["height"], example["width"]) == ([10], [20])
    assert (example["number"], example["text"]) == ([7], [b"x" * 7])
    assert example["image"][0].startswith(b"\xff\xd8")
    assert (receipt.listed, receipt.records, receipt.labels) == (40, 40, {"a": 20, "b": 20})
    assert (receipt.smallest, receipt.largest, receipt.formats) == ((10, 20), (10, 20), {"jpeg": 40})


def test_receipt_and_index_tell_the_truth(refs, tmp_path):
    folder, receipt, _ = write(refs, tmp_path / "out")
    assert receipt.sha256 == hash_file(folder.shard(SHARD))
    assert receipt.index_sha256 == hash_file(folder.index(SHARD))
    assert receipt.bytes == folder.shard(SHARD).stat().st_size
    with folder.shard(SHARD).open("rb") as stream:
        expected = [(offset, len(record) + 16) for offset, record in read_records(stream)]
    assert read_index(folder.index(SHARD)).tolist() == [list(row) for row in expected]


def test_threads_and_listing_order_do_not_change_a_byte(refs, tmp_path):
    first = write(refs, tmp_path / "one", threads=1)[1]
    second = write(list(reversed(refs)), tmp_path / "two", threads=5)[1]
    assert first == second


def test_rejects_are_recorded_with_their_reasons(refs, tmp_path):
    cut = Path(refs[3].location.path)
    cut.write_bytes(cut.read_bytes()[:100])
    refs[3] = refs[3]._replace(location=Location(str(cut), 100))
    Path(refs[5].location.path).unlink()
    refs[9] = refs[9]._replace(fault=Fault("bad_row", "list.csv line 9: label is empty"), labels=())
    refs[11] = refs[12]._replace(location=refs[11].location)  # the same key twice
    folder, receipt, seen = write(refs, tmp_path / "out")
    rows = [json.loads(line) for line in folder.rejects(SHARD).read_text().splitlines()]
    by_reason = {row["reason"]: row for row in rows}
    assert sorted(by_reason) == ["bad_row", "duplicate_key", "truncated", "unreadable"]
    assert by_reason["truncated"]["key"] == "3.jpg"
    assert by_reason["truncated"]["source"] == "default"
    assert by_reason["truncated"]["sha256"] == hash_file(Path(refs[3].location.path))
    assert by_reason["unreadable"]["message"] == "No such file or directory"
    assert by_reason["bad_row"]["message"] == "list.csv line 9: label is empty"
    assert by_reason["duplicate_key"]["message"].startswith("another input has the same key; give each row an id")
    assert receipt.rejected == {"bad_row": 1, "duplicate_key": 1, "truncated": 1, "unreadable": 1}
    assert (receipt.listed, receipt.records) == (40, 36)
    assert seen[-1] == (40, 4)


def test_a_shard_without_rejects_leaves_no_reject_file(refs, tmp_path):
    folder, _, _ = write(refs, tmp_path / "out")
    assert not folder.rejects(SHARD).exists()


def test_facts_have_a_row_per_example(refs, tmp_path):
    folder, _, _ = write(refs, tmp_path / "out")
    (batch,) = read_facts(str(folder.facts(SHARD)))
    rows = batch.to_pydict()
    assert batch.num_rows == 40
    assert sorted(n for (n,) in rows["number"]) == list(range(40))
    assert {name for (name,) in rows["label_name"]} == {b"a", b"b"}
    for mean, square in zip(rows["pixel"], rows["pixel_square"], strict=True):
        assert all(0 <= m <= 1 and m * m <= s <= m for m, s in zip(mean, square, strict=True))


def test_inputs_fingerprint_follows_the_metadata(refs, tmp_path):
    first = write(refs, tmp_path / "a")[1].inputs
    moved = [ref._replace(location=ref.location) for ref in refs]
    assert write(moved, tmp_path / "b")[1].inputs == first
    changed = [refs[0]._replace(location=refs[0].location._replace(size=5)), *refs[1:]]
    assert write(changed, tmp_path / "c")[1].inputs != first


def test_tasks_are_bounded_in_number_and_bytes():
    small = [make_ref(str(n), size=10) for n in range(2 * GROUP_TASKS + 8)]
    assert [len(group) for group in group_refs(small)] == [GROUP_TASKS, GROUP_TASKS, 8]
    large = [make_ref(str(n), size=GROUP_BYTES * 3 // 4) for n in range(5)]
    assert [len(group) for group in group_refs(large)] == [2, 2, 1]
    assert [ref for group in group_refs(small) for ref in group] == small


def test_the_same_input_twice_is_a_duplicate():
    ref = make_ref("k", "a", "/x", 5)
    marked = list(mark_duplicates(sort_refs([ref, ref._replace(source=1), make_ref("k", "a", "/y", 5)])))
    assert [mark.fault and mark.fault.reason for mark in marked] == [None, "listed_twice", "duplicate_key"]


def test_who_wins_a_key_does_not_depend_on_who_was_listed_first():
    refs = [make_ref("k", label, path, 5) for label in "ab" for path in ("/x", "/y")]
    outcomes = {tuple(mark_duplicates(sort_refs(order))) for order in permutations(refs)}
    (marked,) = outcomes
    assert [mark.location.path for mark in marked] == ["/x", "/x", "/y", "/y"]
    assert [mark.fault and mark.fault.reason for mark in marked] == [None, *["duplicate_key"] * 3]
