"""The end of a build: accounting, budget, and a directory that is complete exactly when it has a manifest."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import make_config, run_build
from pictures import write_class_folders

from pipelines.finish.commit import Origin, list_files
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from shards.local import LOCAL, read_local
from shards.manifest import FileEntry, Manifest
from shards.verify import verify

GOLDEN = Path(__file__).parent / "golden"


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
    config = make_config(built.source, copy)
    with pytest.raises(UsageError, match="already holds a finished dataset, but .*; choose another --output, or pass"):
        run_build(config)
    assert verify(copy) == []
    BuildFolder(copy).prepare(anew=True)
    assert sorted(path.name for path in copy.iterdir()) == [".build", "rejected", "state"]


def test_the_manifest_lists_every_file(built):
    listed = {entry.path for entry in built.manifest.files} | {"manifest.json", "state/manifest.json"}
    for split in built.manifest.splits:
        listed |= {shard.path for shard in split.shards} | {shard.index for shard in split.shards}
    there = {path.relative_to(built.root).as_posix() for path in built.root.rglob("*") if path.is_file()}
    local = {name for name in there if name.startswith("state/seen/")}  # times of modification, true here only
    assert set(read_local(built.root)) == local
    assert len(local) == 1 + sum(len(split.shards) for split in built.manifest.splits)
    assert there - local - {LOCAL} == listed
    assert {"schema.pbtxt", "dataset_info.json", "features.json", "label.labels.txt", "report.html"} <= there
    assert all(
        hash_file(built.root / entry.path) == entry.sha256
        for entry in list_files(BuildFolder(built.root))
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


def test_files_that_a_version_shares_with_the_one_before_are_not_hashed_again(tmp_path):
    """Their entries are taken over; so damage that came to them meanwhile is not taken for what they should be."""
    old, new = tmp_path / "old", tmp_path / "new"
    for root in (old, new):
        (root / "state").mkdir(parents=True)
    (old / "state" / "shared").write_bytes(b"shared")
    (old / "state" / "other").write_bytes(b"as it was")
    os.link(old / "state" / "shared", new / "state" / "shared")
    (new / "state" / "other").write_bytes(b"as it is")
    before = read_manifest_of([FileEntry(path=f"state/{n}", bytes=6, sha256="known") for n in ("shared", "other")])
    found = {entry.path: entry.sha256 for entry in list_files(BuildFolder(new), Origin("append", before, old))}
    assert found == {"state/shared": "known", "state/other": hash_file(new / "state" / "other")}


def read_manifest_of(files: list[FileEntry]) -> Manifest:
    """As much of a manifest as is asked for."""
    return Manifest.model_construct(files=tuple(files), version=1)
