"""The end of a build: accounting, budget, and a directory that is complete exactly when it has a manifest."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import make_config, make_ref, run_build
from pictures import write_class_folders

from pipelines.commit import check_accounting, check_budget, count_up, list_files
from pipelines.layout import BuildFolder
from pipelines.plan import Listing, make_plan
from pipelines.values import Account, Receipt
from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from shards.verify import verify

GOLDEN = Path(__file__).parent / "golden"


def receipt(index: int = 0, *, listed: int = 10, records: int = 10, **rejected: int) -> Receipt:
    return Receipt(
        split="train", index=index, listed=listed, records=records, bytes=1, sha256="", index_sha256="", inputs="",
        labels={}, rejected=rejected, formats={}, smallest=(1, 1), largest=(1, 1),
        sources={"default": Account(listed, records, sum(rejected.values()), 0)},
    )  # fmt: skip


def plan_for(images: int, shards: int):
    config = make_config("raw", "out", splits={"fractions": {"train": 1.0}}, shards={"count": shards})
    listing = Listing()
    for number in range(images):
        listing.add(make_ref(str(number), "a", size=10), config)
    return make_plan(listing, config)


def test_counts_add_up():
    counts = count_up(
        [receipt(listed=10, records=7, truncated=3), receipt(listed=5, records=3, truncated=1, empty_file=1)]
    )
    assert counts.model_dump() == {
        "listed": 15, "written": 10, "rejected": {"empty_file": 1, "truncated": 4}, "duplicates": 0,
        "boxes_kept": 0, "boxes_dropped": 0, "kept_truncated": 0,
        "sources": (
            {"source": "default", "split": "train", "listed": 15, "written": 10, "rejected": 5, "duplicates": 0},
        ),
    }  # fmt: skip
    assert counts.problems() == []


def test_a_missing_shard_or_input_stops_the_commit():
    plan = plan_for(20, 2)
    whole = [receipt(0), receipt(1)]
    check_accounting(plan, whole, count_up(whole))
    with pytest.raises(ShardsmithError, match="1 of 2 planned shards were written; run the build again"):
        check_accounting(plan, whole[:1], count_up(whole[:1]))
    lost = [receipt(0), receipt(1, records=9)]
    with pytest.raises(ShardsmithError, match="the dataset: 20 listed are not 19 written \\+ 0 rejected"):
        check_accounting(plan, lost, count_up(lost))
    fewer = [receipt(0), receipt(1, listed=9, records=9)]
    with pytest.raises(
        ShardsmithError, match="20 inputs were planned, 19 came; did the source change during the build"
    ):
        check_accounting(plan, fewer, count_up(fewer))


def test_the_budget_says_what_was_rejected_and_why(tmp_path):
    folder = BuildFolder(tmp_path)
    folder.prepare(overwrite=False)
    rows = [
        {"key": f"a/{n}.jpg", "source": "raw", "reason": "truncated", "message": "cut", "sha256": ""} for n in range(7)
    ]
    (tmp_path / "rejected" / "train-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = count_up([receipt(listed=100, records=93, truncated=7)])
    config = make_config("raw", tmp_path, max_reject_fraction=0.05)
    with pytest.raises(ShardsmithError) as caught:
        check_budget(counts, config, folder)
    assert str(caught.value) == (
        "7 of 100 inputs were rejected (7.00%), max_reject_fraction allows 5.00%: 7 truncated"
        + "".join(f"\n  a/{n}.jpg: truncated: cut" for n in range(5))
        + f"\n  and 2 more\n  the full list is in {tmp_path}/rejected; mend or remove these files, "
        "or allow them with --set max_reject_fraction=0.07"
    )
    check_budget(counts, make_config("raw", tmp_path, max_reject_fraction=0.07), folder)
    with pytest.raises(ShardsmithError, match="no image could be used: 3 truncated"):
        check_budget(
            count_up([receipt(listed=3, records=0, truncated=3)]),
            make_config("r", "o", max_reject_fraction=1.0),
            folder,
        )


def test_a_failed_build_leaves_nothing_that_looks_complete_and_can_be_run_again(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=6)
    (source / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    config = make_config(source, tmp_path / "out")
    with pytest.raises(ShardsmithError, match=r"1 of 13 inputs were rejected \(7.69%\)"):
        run_build(config)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert (tmp_path / "out" / "rejected").is_dir()
    (source / "dog" / "broken.png").unlink()
    manifest = run_build(config)
    assert manifest.counts.listed == 12
    assert verify(tmp_path / "out") == []
    assert not (tmp_path / "out" / ".build").exists()


def test_outputs_that_hold_something_else_are_refused(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=4)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("do not delete")
    with pytest.raises(UsageError, match="is not empty and not a dataset; choose another --output"):
        run_build(make_config(source, out))
    assert (out / "thesis.tex").read_text() == "do not delete"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; choose a directory"):
        run_build(make_config(source, tmp_path / "file"))
    with pytest.raises(UsageError, match="lies inside the source"):
        run_build(make_config(source, source / "out"))
    with pytest.raises(UsageError, match="holds the source"):
        run_build(make_config(source, tmp_path))
    with pytest.raises(UsageError, match="remote outputs are not supported yet"):
        run_build(make_config(source, "gs://bucket/out"))


def test_a_finished_dataset_is_replaced_only_on_request(built, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(built.root, copy)
    with pytest.raises(
        UsageError, match="already holds a finished dataset; choose another --output, or pass --overwrite"
    ):
        BuildFolder(copy).prepare(overwrite=False)
    assert verify(copy) == []
    BuildFolder(copy).prepare(overwrite=True)
    assert sorted(path.name for path in copy.iterdir()) == [".build", "rejected", "state"]


def test_the_manifest_lists_every_file(built):
    listed = {entry.path for entry in built.manifest.files} | {"manifest.json"}
    for split in built.manifest.splits:
        listed |= {shard.path for shard in split.shards} | {shard.index for shard in split.shards}
    there = {path.relative_to(built.root).as_posix() for path in built.root.rglob("*") if path.is_file()}
    assert there == listed
    assert {"schema.pbtxt", "dataset_info.json", "features.json", "label.labels.txt", "report.html"} <= there
    assert all(
        hash_file(built.root / entry.path) == entry.sha256
        for entry in list_files(built.root)
        if entry.path != "manifest.json"
    )


def test_the_manifest_names_no_place_and_no_time(built):
    text = (built.root / "manifest.json").read_text()
    assert str(built.root) not in text
    assert str(built.source) not in text
    assert "/tmp" not in text


def test_the_dataset_can_be_moved(built, tmp_path):
    shutil.copytree(built.root, tmp_path / "elsewhere")
    assert verify(tmp_path / "elsewhere") == []


def test_accounting_in_the_manifest(built):
    counts = built.manifest.counts
    assert (counts.listed, counts.written, counts.rejected, counts.duplicates) == (41, 40, {"truncated": 1}, 0)
    assert sum(sum(split.labels.values()) for split in built.manifest.splits) == 40
    rows = [json.loads(line) for path in (built.root / "rejected").iterdir() for line in path.read_text().splitlines()]
    assert [(row["key"], row["reason"]) for row in rows] == [("cat/broken.jpg", "truncated")]


@pytest.mark.parametrize(
    "name", ["schema.pbtxt", "dataset_info.json", "features.json", "label.labels.txt", "train/train-00000.idx"]
)
def test_the_contract_on_disk(built, name):
    """Golden files: readers elsewhere depend on them. A change here belongs in the CHANGELOG."""
    assert (built.root / name).read_text() == (GOLDEN / "animals" / name).read_text()


def test_the_bytes_of_the_shards(built):
    """The promise 'same input, same bytes', across machines and releases."""
    golden = json.loads((GOLDEN / "animals" / "shards.json").read_text())
    assert {shard.path: shard.sha256 for split in built.manifest.splits for shard in split.shards} == golden
