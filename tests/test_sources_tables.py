"""Parquet: listings, Hugging Face's tables with pictures in them, rows of features; and damaged files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_config, run_build
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig, ImageConfig
from pipelines.pictures.process import read_input
from pipelines.reasons import LISTED_TWICE, Reason
from pipelines.sources import check_sources, list_partition, partition_sources, tables
from pipelines.values import InputRef
from shards.errors import UsageError

PROJECT = Path(__file__).parent.parent
HF_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_table(path: Path, columns: dict, *, features: dict | None = None, **options) -> Path:
    """A Parquet file; with Hugging Face's description of its features if given."""
    table = pa.table(columns)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def refs_of(config: BuildConfig, spool: Path | str = "") -> list[InputRef]:
    check_sources(config)
    return [ref for part in partition_sources(config) for ref in list_partition(part, config, str(spool))]


def table_refs(path: Path | str, tmp_path: Path, **sections) -> list[InputRef]:
    return refs_of(make_config(path, "out", **sections), tmp_path / "spool")


def payload(ref: InputRef) -> bytes:
    return read_input(ref.location, ImageConfig())


def refused(path: Path | str, **sections) -> str:
    with pytest.raises(UsageError) as caught:
        check_sources(make_config(path, "out", **sections))
    return str(caught.value)


def test_a_listing_reads_its_row_groups_as_pieces_and_spools_nothing(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(number))
    columns = {"path": [f"{n}.jpg" for n in range(5)], "label": list("ababa"), "age": range(5), "junk": ["x" * 99] * 5}
    listing = write_table(tmp_path / "list.parquet", columns, row_group_size=2)
    config = make_config(listing, "out", columns={"age": {"type": "int"}})
    assert [(part.first, part.end, part.spooled) for part in partition_sources(config)] == [(0, 3, False)]
    monkeypatch.setattr(tables, "PIECE_BYTES", 1)
    assert [(part.first, part.end) for part in partition_sources(config)] == [(0, 1), (1, 2), (2, 3)]
    refs = refs_of(config, tmp_path / "spool")
    assert [(ref.key, *ref.labels, *ref.columns, ref.location.size) for ref in refs] == [
        ("0.jpg", "a", 0, 0), ("1.jpg", "b", 1, 1), ("2.jpg", "a", 2, 2), ("3.jpg", "b", 3, 3), ("4.jpg", "a", 4, 4),
    ]  # fmt: skip
    assert not (tmp_path / "spool").exists()


def test_only_the_needed_columns_are_read():
    config = make_config(
        "x", "out", columns={"age": {"type": "int"}}, source={"fields": {"label": "y", "boxes": "objects.bbox"}}
    )
    names = ["junk", "image", "label", "y", "objects", "age", "id", "embedding"]
    assert tables.needed_columns(names, config.source, config) == ["image", "y", "objects", "age", "id"]


@pytest.mark.parametrize("pieces", ["one", "many"])
def test_hugging_face_pictures(tmp_path, monkeypatch, pieces):
    if pieces == "many":
        monkeypatch.setattr(tables, "PIECE_BYTES", 1)
    (tmp_path / "data" / "elsewhere").mkdir(parents=True)
    (tmp_path / "data" / "elsewhere" / "c.jpg").write_bytes(b"in a file")
    images = [
        {"bytes": b"first", "path": "a.jpg"},
        {"bytes": b"second", "path": None},
        {"bytes": None, "path": "elsewhere/c.jpg"},
        {"bytes": None, "path": None},
        None,
        {"bytes": b"", "path": "empty.jpg"},
    ]
    label = {"names": ["dog", "cat"], "_type": "ClassLabel"}
    write_table(
        tmp_path / "data" / "train-00000-of-00001.parquet",
        {"image": pa.array(images, HF_IMAGE), "label": [0, 1, 1, 1, 1, 0]},
        features={"image": {"_type": "Image"}, "label": label},
        row_group_size=2,
    )
    refs = table_refs(f"{tmp_path}/data/*.parquet", tmp_path)
    file = "train-00000-of-00001.parquet"
    assert [(ref.key, ref.labels, ref.split, ref.fault and ref.fault.message) for ref in refs] == [
        (f"{file}/00000000", ("dog",), "train", None),
        (f"{file}/00000001", ("cat",), "train", None),
        ("elsewhere/c.jpg", ("cat",), "train", None),
        (f"{file} row 3", (), "train", "image is empty"),
        (f"{file} row 4", (), "train", "image is empty"),
        (f"{file}/00000005", ("dog",), "train", None),
    ]
    assert [payload(refs[place]) for place in (0, 1, 2, 5)] == [b"first", b"second", b"in a file", b""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.binary()), pa.binary(3)])
def test_plain_binary_columns(tmp_path, kind):
    table = write_table(tmp_path / "a.parquet", {"jpeg": pa.array([b"abc", b"def"], kind), "label": ["x", "y"]})
    refs = table_refs(table, tmp_path, source={"fields": {"image": "jpeg"}, "split": "test"})
    assert [(ref.key, ref.labels, ref.split, payload(ref)) for ref in refs] == [
        ("a.parquet/00000000", ("x",), "test", b"abc"),
        ("a.parquet/00000001", ("y",), "test", b"def"),
    ]


def test_rows_of_features(tmp_path):
    columns = {"features": [[1.0, 2.0], [3.0, 4.0], [5.0, None]], "label": [0, 1, 0]}
    first, second, broken = table_refs(write_table(tmp_path / "a.parquet", columns), tmp_path)
    assert (first.location.form, first.location.offset, second.location.offset) == ("<f8:2", 0, 16)
    assert broken.fault == (Reason.BAD_ROW, "rows of object are not features; they must be numbers")


def test_an_image_column_of_text_holds_paths(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"12345")
    (ref,) = table_refs(write_table(tmp_path / "a.parquet", {"image": ["a.jpg"], "label": ["x"]}), tmp_path)
    assert (ref.key, payload(ref)) == ("a.jpg", b"12345")


def test_ids_are_keys(tmp_path):
    table = write_table(tmp_path / "a.parquet", {"image": [b"x", b"y"], "label": ["x", "y"], "id": ["one", None]})
    assert [ref.key for ref in table_refs(table, tmp_path)] == ["one", "a.parquet/00000001"]


def test_a_field_of_the_image_can_be_the_id(tmp_path):
    table = write_table(
        tmp_path / "a.parquet", {"image": pa.array([{"bytes": b"x", "path": "0.jpg"}], HF_IMAGE), "label": ["x"]}
    )
    (ref,) = table_refs(table, tmp_path, source={"fields": {"id": "image.path"}})
    assert (ref.key, payload(ref)) == ("0.jpg", b"x")


def test_files_of_several_folders_keep_apart(tmp_path):
    for split in ("train", "test"):
        write_table(tmp_path / split / "0.parquet", {"image": [split.encode()], "label": ["x"]})
    refs = table_refs(f"{tmp_path}/*/0.parquet", tmp_path)
    assert {ref.key: payload(ref) for ref in refs} == {
        "test/0.parquet/00000000": b"test",
        "train/0.parquet/00000000": b"train",
    }
    assert [ref.key for ref in table_refs(tmp_path, tmp_path, source={"kind": "parquet"})] == [ref.key for ref in refs]


def test_splits_come_from_hugging_faces_file_names_unless_something_else_tells(tmp_path):
    for name in ("validation-00000-of-00002.parquet", "all-00000-of-00001.parquet", "train.parquet"):
        write_table(tmp_path / name, {"image": [b"x"], "label": ["x"]})
    write_table(tmp_path / "train-00001-of-00002.parquet", {"image": [b"x"], "label": ["x"], "split": ["test"]})
    splits = {ref.key.partition(".")[0]: ref.split for ref in table_refs(f"{tmp_path}/*.parquet", tmp_path)}
    assert splits == {
        "all-00000-of-00001": "",
        "train": "",
        "train-00001-of-00002": "test",
        "validation-00000-of-00002": "validation",
    }
    given = table_refs(f"{tmp_path}/*.parquet", tmp_path / "other", source={"split": "test"})
    assert {ref.split for ref in given} == {"test"}


CLASS_LABEL = {"names": ["zero", "one"], "_type": "ClassLabel"}


@pytest.mark.parametrize(
    ("labels", "feature", "kind", "expected"),
    [
        ([1, 0], CLASS_LABEL, "single", [("one",), ("zero",)]),
        ([1, -1], CLASS_LABEL, "single", [("one",), "label is empty"]),
        ([1, None], CLASS_LABEL, "single", [("one",), "label is empty"]),
        ([1, 2], CLASS_LABEL, "single", [("one",), "label 2 is no id: label has 2 names, from 0"]),
        ([1, -2], CLASS_LABEL, "single", [("one",), "label -2 is no id: label has 2 names, from 0"]),
        ([[1, 0], []], {"feature": CLASS_LABEL, "_type": "List"}, "multi", [("one", "zero"), ()]),
        ([[1], [0]], [CLASS_LABEL], "multi", [("one",), ("zero",)]),
        ([1, 0], {"dtype": "int64", "_type": "Value"}, "single", [("1",), ("0",)]),
        (["a", "b"], None, "single", [("a",), ("b",)]),
    ],
)
def test_class_labels(tmp_path, labels, feature, kind, expected):
    features = {"label": feature} if feature else None
    table = write_table(tmp_path / "a.parquet", {"image": [b"x", b"y"], "label": labels}, features=features)
    refs = table_refs(table, tmp_path, labels={"kind": kind})
    assert [ref.fault.message if ref.fault else ref.labels for ref in refs] == expected


def test_a_names_file_counts_more_than_class_labels(tmp_path):
    table = write_table(tmp_path / "a.parquet", {"image": [b"x"], "label": [1]}, features={"label": CLASS_LABEL})
    (tmp_path / "names.txt").write_text("null\nun\n")
    (ref,) = table_refs(table, tmp_path, labels={"names": str(tmp_path / "names.txt")})
    assert ref.labels == ("un",)


def test_metadata_tables_of_hugging_face_folders(tmp_path):
    for split in ("train", "test"):
        write_table(tmp_path / split / "metadata.parquet", {"file_name": ["0.jpg"], "label": ["cat"]})
        (tmp_path / split / "0.jpg").write_bytes(b"x")
    assert [(ref.key, ref.split, ref.fault) for ref in table_refs(tmp_path, tmp_path)] == [
        ("test/0.jpg", "test", None),
        ("train/0.jpg", "train", None),
    ]


def test_tables_that_cannot_be_used_are_refused(tmp_path):
    table = write_table(tmp_path / "a.parquet", {"picture": [b"x"], "label": ["x"]})
    assert refused(table) == (
        f"{table} has no column 'image' or 'features' or 'path'; it has picture, label; "
        "if it is called otherwise, say so with source.fields: {image: its name}"
    )
    assert "has no column 'label'; it has image;" in refused(write_table(table, {"image": [b"x"]}))
    table = write_table(table, {"image": pa.array([], pa.binary()), "label": pa.array([], pa.string())})
    assert refused(table) == f"source.path {table} lists no images"
    pq.write_table(pa.Table.from_arrays([pa.array([b"x"])] * 2, names=["image", "image"]), table)
    assert refused(table) == f"{table} has two columns called 'image'; rename one of them"
    table.write_bytes(b"PAR1 no PAR1")
    assert refused(table).startswith(f"{table} cannot be read as Parquet: ")
    table.write_bytes(b"")
    assert refused(table).startswith(f"{table} cannot be read as Parquet: ")
    assert refused(tmp_path / "no.parquet") == f"source.path {tmp_path}/no.parquet does not exist"
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty", source={"kind": "parquet"}) == (
        f"source.path {tmp_path}/empty is a folder without Parquet files, but source.kind is parquet"
    )


def test_a_damaged_row_group_costs_its_own_rows_only(tmp_path):
    columns = {"image": [bytes([n]) * 1000 for n in range(6)], "label": ["x"] * 6}
    table = write_table(tmp_path / "a.parquet", columns, row_group_size=2, use_dictionary=False)
    chunk = pq.ParquetFile(table).metadata.row_group(1).column(0)
    data = bytearray(table.read_bytes())
    end = chunk.data_page_offset + chunk.total_compressed_size
    data[end - 60 : end] = b"\xff" * 60
    table.write_bytes(data)
    refs = table_refs(table, tmp_path)
    assert [ref.key for ref in refs] == [
        "a.parquet/00000000", "a.parquet/00000001", "a.parquet row 2", "a.parquet row 3",
        "a.parquet/00000004", "a.parquet/00000005",
    ]  # fmt: skip
    for ref in refs[2:4]:
        assert ref.fault.reason == Reason.UNREADABLE
        assert ref.fault.message.startswith("row group 1 is damaged: ")
    assert [payload(ref)[0] for ref in refs if not ref.fault] == [0, 1, 4, 5]


def test_text_that_is_not_utf8_costs_its_row_only(tmp_path):
    text = pa.array([b"cat", b"\xff\xfe", b"dog"]).view(pa.string())
    refs = table_refs(write_table(tmp_path / "a.parquet", {"image": [b"x"] * 3, "label": text}), tmp_path)
    assert [ref.labels for ref in refs] == [("cat",), (), ("dog",)]
    assert refs[1].key == "a.parquet row 1"
    assert refs[1].fault.reason == Reason.BAD_ROW
    assert refs[1].fault.message.startswith("column label cannot be read: 'utf-8' codec can't decode byte 0xff")


def test_a_dry_run_writes_nothing(tmp_path):
    table = write_table(tmp_path / "a.parquet", {"image": [b"abc", b"de"], "label": ["x", "y"]})
    refs = refs_of(make_config(table, "out"))
    assert [(ref.location.path, ref.location.offset, ref.location.size) for ref in refs] == [("", 0, 3), ("", 3, 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


MEMORY = """
import sys
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.config import BuildConfig

def peak():
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

config = BuildConfig(source={"path": sys.argv[1]}, output="out")
check_sources(config)
before = peak()
total = sum(ref.location.size for part in partition_sources(config) for ref in list_partition(part, config, "spool"))
print(total, peak() - before)
"""


def test_two_hundred_megabytes_pass_through_in_a_few(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema({"image": pa.binary(), "label": pa.string()})) as writer:
        for _ in range(20):
            writer.write_table(pa.table({"image": [os.urandom(100_000) for _ in range(100)], "label": ["x"] * 100}))
    command = [sys.executable, "-c", MEMORY, "a.parquet"]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    total, grown = map(int, done.stdout.split())
    assert total == 200_000_000
    assert grown < 100  # a row group of 10 MB, compressed and not, and what Arrow keeps for later


def test_a_dataset_of_several_sources(tmp_path):
    """A class folder, two listings of which both name the same picture, and a table; all with the same classes."""
    write_class_folders(tmp_path / "raw", images=4)
    (tmp_path / "lists").mkdir()
    for number in range(3):
        (tmp_path / "lists" / f"{number}.jpg").write_bytes(encoded(picture(100 + number)))
    (tmp_path / "lists" / "a.csv").write_text("path,label\n0.jpg,cat\n1.jpg,cow\n")
    (tmp_path / "lists" / "b.csv").write_text("path,label\n1.jpg,cow\n2.jpg,dog\n")
    images = [encoded(picture(200)), b"not a picture"]
    write_table(
        tmp_path / "table" / "train-00000-of-00001.parquet",
        {"image": pa.array([{"bytes": data, "path": "x.jpg"} for data in images], HF_IMAGE), "label": [1, 0]},
        features={"label": {"names": ["cow", "dog"], "_type": "ClassLabel"}},
    )
    sources = [
        {"name": "folder", "path": str(tmp_path / "raw")},
        {"name": "listed", "path": f"{tmp_path}/lists/*.csv"},
        {"name": "table", "path": f"{tmp_path}/table/*.parquet"},
    ]
    config = BuildConfig(
        sources=sources, output=str(tmp_path / "out"), splits={"fractions": {"train": 1.0}}, max_reject_fraction=0.1
    )
    manifest = run_build(config)
    assert manifest.labels == ("cat", "cow", "dog")
    assert manifest.split("train").labels == {"cat": 5, "cow": 1, "dog": 6}
    accounts = [(each.source, each.listed, each.written, each.duplicates) for each in manifest.counts.sources]
    assert accounts == [("folder", 8, 8, 0), ("listed", 4, 3, 1), ("table", 2, 1, 0)]
    rejects = [json.loads(line) for path in (tmp_path / "out/rejected").iterdir() for line in path.open()]
    (reject,) = [each for each in rejects if each["reason"] != LISTED_TWICE]
    key = "table/train-00000-of-00001.parquet/00000001"
    assert (reject["key"], reject["source"], reject["reason"]) == (key, "table", "unknown_format")
