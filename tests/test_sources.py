"""Listing: what becomes a ref, under which key, and what is refused before work starts."""

import json
import os
import unicodedata
from pathlib import Path

import pytest
from conftest import make_config
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig, SourceConfig
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources, resolve
from pipelines.sources.rows import make_key
from pipelines.values import InputRef, Location
from shards.errors import UsageError


def source(path: Path | str, *, columns: dict | None = None, **fields: object) -> BuildConfig:
    return make_config(path, "out", source=fields, columns=columns or {})


def list_all(config: BuildConfig) -> dict[str, InputRef]:
    refs = [ref for part in partition_sources(config) for ref in list_partition(part, config)]
    assert len({ref.key for ref in refs}) == len(refs)
    return {ref.key: ref for ref in refs}


def write_csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_class_folders(tmp_path):
    refs = list_all(source(write_class_folders(tmp_path, images=3)))
    assert sorted(refs) == [
        "cat/001.jpg", "cat/002.jpg", "cat/deep/000.png", "dog/001.jpg", "dog/002.jpg", "dog/deep/000.png",
    ]  # fmt: skip
    ref = refs["cat/deep/000.png"]
    assert (ref.labels, ref.split, ref.fault) == (("cat",), "", None)
    assert ref.location.path == f"{tmp_path}/cat/deep/000.png"
    assert ref.location.size == os.path.getsize(ref.location.path)


def test_split_folders_are_seen_by_their_names(tmp_path):
    write_class_folders(tmp_path / "train", images=2)
    write_class_folders(tmp_path / "test", images=1)
    refs = list_all(source(tmp_path))
    assert {(ref.split, *ref.labels) for ref in refs.values()} == {
        ("train", "cat"), ("train", "dog"), ("test", "cat"), ("test", "dog"),
    }  # fmt: skip
    assert "train/cat/001.jpg" in refs


def test_layout_overrides_what_the_names_suggest(tmp_path):
    write_class_folders(tmp_path / "train", images=2)
    refs = list_all(source(tmp_path, layout="class"))
    assert {(ref.split, *ref.labels) for ref in refs.values()} == {("", "train")}


def test_every_file_in_a_class_folder_is_an_input_but_sidecars_and_hidden_ones(tmp_path):
    folder = write_class_folders(tmp_path, classes=("cat",), images=2) / "cat"
    for name in ("notes.txt", "scan.TIFF", "UPPER.JPG", ".hidden.jpg", "n02085620_7", "odd.bin", "Thumbs.db"):
        (folder / name).write_bytes(b"x")
    (tmp_path / "LICENSE").write_bytes(b"x")  # outside class folders only what looks like an image counts
    assert sorted(list_all(source(tmp_path))) == [
        "cat/001.jpg", "cat/UPPER.JPG", "cat/deep/000.png", "cat/n02085620_7", "cat/odd.bin", "cat/scan.TIFF",
    ]  # fmt: skip


def test_loose_files_are_faults_not_losses(tmp_path):
    write_class_folders(tmp_path / "train", images=1)
    (tmp_path / "stray.jpg").write_bytes(encoded(picture(1)))
    (tmp_path / "train" / "lost.png").write_bytes(encoded(picture(2), "png"))
    refs = list_all(source(tmp_path))
    for key in ("stray.jpg", "train/lost.png"):
        assert refs[key].fault == (Reason.NO_LABEL, "the file lies in no class folder")


def test_directories_named_like_images_and_link_loops(tmp_path):
    folder = write_class_folders(tmp_path, classes=("cat",), images=2) / "cat"
    (folder / "album.jpg").mkdir()
    (folder / "album.jpg" / "inside.jpg").write_bytes(encoded(picture(3)))
    (folder / "loop").symlink_to(folder)
    (folder / "linked.jpg").symlink_to(folder / "001.jpg")
    assert sorted(list_all(source(tmp_path))) == [
        "cat/001.jpg", "cat/album.jpg/inside.jpg", "cat/deep/000.png", "cat/linked.jpg",
    ]  # fmt: skip


def test_keys_are_nfc_and_survive_names_that_are_not_utf8(tmp_path):
    folder = tmp_path / "cat"
    folder.mkdir()
    (folder / unicodedata.normalize("NFD", "é.jpg")).write_bytes(b"x")
    with open(os.fsencode(folder) + b"/bad\xff.jpg", "wb") as stream:
        stream.write(b"x")
    assert sorted(list_all(source(tmp_path))) == ["cat/bad\\xff.jpg", "cat/é.jpg"]
    assert make_key("a/b c.jpg") == "a/b c.jpg"


def test_csv_listing(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.jpg").write_bytes(b"12345")
    outside = tmp_path.parent / "outside.jpg"
    listing = write_csv(
        tmp_path / "list.csv",
        "path,label,split,group,id,age,weight,city",
        "img/a.jpg,cat,train,g1,,3,1.5,Rome",
        f"{outside},dog,,,my id,-4,2e3,",
    )
    columns = {"age": {"type": "int"}, "weight": {"type": "float"}, "city": {"type": "text"}}
    refs = list_all(source(listing, columns=columns))
    first, second = refs["img/a.jpg"], refs["my id"]
    path = tmp_path / "img" / "a.jpg"
    location = Location(str(path), 5, modified=path.stat().st_mtime_ns)
    assert first == InputRef("img/a.jpg", location, ("cat",), (), "train", "g1", (3, 1.5, "Rome"))
    listed = InputRef("my id", Location(str(outside), 0), ("dog",), columns=(-4, 2000.0, ""))
    assert second._replace(fault=None) == listed
    assert second.fault == (Reason.UNREADABLE, "No such file or directory")


def test_keys_are_never_absolute(tmp_path):
    listing = write_csv(tmp_path / "sub.csv", "path,label", f"{tmp_path}/in.jpg,a", "/elsewhere/out.jpg,a")
    assert sorted(list_all(source(listing))) == ["elsewhere/out.jpg", "in.jpg"]


def test_jsonl_listing(tmp_path):
    rows = [{"path": "a.jpg", "label": 7, "score": 1, "split": None}, {"path": "b.jpg", "label": "x", "score": 0.25}]
    listing = tmp_path / "list.jsonl"
    listing.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    refs = list_all(source(listing, columns={"score": {"type": "float"}}))
    assert (refs["a.jpg"].labels[0], refs["a.jpg"].columns, refs["a.jpg"].split) == ("7", (1.0,), "")
    assert refs["b.jpg"].columns == (0.25,)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a.jpg,,1", "label is empty"),
        (",cat,1", "path is empty"),
        ("a.jpg,cat,three", "column n holds 'three', which is not int"),
        ("a.jpg,cat,99999999999999999999", "column n holds '99999999999999999999', which is not int"),
        ("a.jpg,cat", "no cell for n"),
        ("a.jpg,cat,1.5", "column n holds '1.5', which is not int"),
        ("a.jpg,cat,1,2", "more cells than the header has columns"),
        ('a.jpg,"two\nlines",1', "label 'two\\nlines' is blank or has unprintable characters"),
    ],
)
def test_a_bad_row_is_a_fault_that_names_file_and_line(tmp_path, row, problem):
    (tmp_path / "good.jpg").write_bytes(b"x")
    listing = write_csv(tmp_path / "list.csv", "path,label,n", "good.jpg,cat,1", row)
    refs = list_all(source(listing, columns={"n": {"type": "int"}}))
    line = 4 if "\n" in row else 3
    reason = Reason.NO_LABEL if problem == "label is empty" else Reason.BAD_ROW
    assert refs[f"list.csv line {line}"].fault == (reason, problem)
    assert refs["good.jpg"].fault is None


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", ""])
def test_floats_must_be_finite(value, tmp_path):
    (tmp_path / "good.jpg").write_bytes(b"x")
    listing = write_csv(tmp_path / "list.csv", "path,label,x", "good.jpg,cat,1", f"a.jpg,cat,{value}")
    (fault,) = (ref.fault for ref in list_all(source(listing, columns={"x": {"type": "float"}})).values() if ref.fault)
    assert fault.message == f"column x holds {value!r}, which is not float"


def test_bad_json_and_bad_split_are_faults(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    listing = tmp_path / "list.jsonl"
    listing.write_text(
        '{"path": "a.jpg", "label": "x"}\n{broken\n[1]\n{"path": "b.jpg", "label": "x", "split": "a/b"}\n'
    )
    faults = {ref.key: ref.fault.message for ref in list_all(source(listing)).values() if ref.fault}
    assert faults == {
        "list.jsonl line 2": "not JSON: Expecting property name enclosed in double quotes",
        "list.jsonl line 3": "not a JSON object",
        "list.jsonl line 4": "split 'a/b' must be letters, digits and underscores",
    }
    reasons = [ref.fault.reason for ref in list_all(source(listing)).values() if ref.fault]
    assert reasons == [Reason.BAD_ROW, Reason.BAD_ROW, Reason.UNKNOWN_SPLIT]


def refused(config: BuildConfig) -> str:
    with pytest.raises(UsageError) as caught:
        check_sources(config)
    return str(caught.value)


def test_sources_that_cannot_be_listed_are_refused(tmp_path):
    assert refused(source(tmp_path / "no")) == f"source.path {tmp_path}/no does not exist"
    assert refused(source(tmp_path)) == (
        f"source.path {tmp_path} has no class folders; expected {tmp_path}/<class>/<image>, or a listing; "
        "for a flat folder set source.label_pattern, or labels.kind: none"
    )
    (tmp_path / "notes.txt").write_text("x")
    notes = tmp_path / "notes.txt"
    assert refused(source(notes)).startswith(f"source.path {notes}: neither a folder nor a file that ends in .csv, ")
    assert refused(source(notes)).endswith("; set source.kind")
    assert refused(source(notes, kind="folder")) == (
        f"source.path {notes} is not a folder; set source.kind to what it is"
    )
    assert refused(source(tmp_path, kind="csv")) == (
        f"source.path {tmp_path} is a folder without a metadata.csv, but source.kind is csv"
    )
    assert refused(source(f"{tmp_path}/*.csv")) == f"source.path {tmp_path}/*.csv matches no file"
    (tmp_path / "a\nb").mkdir()
    assert "label 'a\\nb' is blank or has unprintable characters; rename it" in refused(source(tmp_path))


def test_columns_are_not_for_folders(tmp_path):
    write_class_folders(tmp_path / "raw", images=1)
    assert refused(source(tmp_path / "raw", columns={"age": {"type": "int"}})) == (
        f"source.path {tmp_path}/raw is a folder, which has no columns; use a listing"
    )
    with pytest.raises(UsageError, match="'image' is a name of our own; choose another and map it with source.fields"):
        source(tmp_path / "raw", columns={"image": {"type": "int"}})


def test_the_kind_is_seen_by_the_path(tmp_path):
    for name in ("a.csv", "a.TSV", "a.jsonl", "a.ndjson", "a.csv.gz", "a.jsonl.gz", "a.parquet"):
        (tmp_path / name).touch()
    kinds = {path.name: resolve(SourceConfig(path=str(path))).kind for path in sorted(tmp_path.iterdir())}
    assert kinds == {
        "a.TSV": "tsv", "a.csv": "csv", "a.csv.gz": "csv", "a.jsonl": "jsonl", "a.jsonl.gz": "jsonl",
        "a.ndjson": "jsonl", "a.parquet": "parquet",
    }  # fmt: skip
    assert resolve(SourceConfig(path=f"{tmp_path}/*.csv")).kind == "csv"
    assert resolve(SourceConfig(path="my_data.pets:examples")).kind == "python"
    assert resolve(SourceConfig(path=str(tmp_path))).kind == "folder"
