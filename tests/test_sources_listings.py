"""Listings as people really write them: every oddity costs its own row, or the build is refused before work."""

import gzip
from pathlib import Path

import pytest
from conftest import make_config
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import BuildConfig
from pipelines.reasons import LISTED_TWICE, Reason
from pipelines.sources import check_sources, list_partition, listings, partition_sources
from pipelines.values import InputRef
from pipelines.writing.write import mark_duplicates
from shards.errors import UsageError

HEADER = b"path,label\n"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refs_of(path: Path | str, **sections) -> list[InputRef]:
    config = make_config(path, "out", **sections)
    check_sources(config)
    return [ref for part in partition_sources(config) for ref in list_partition(part, config)]


def outcome(ref: InputRef) -> tuple:
    """What a test compares: the label of a good row, the message of a faulty one."""
    missing = ref.fault is not None and ref.fault.message == "No such file or directory"
    return (ref.key, *ref.labels) if ref.fault is None or missing else (ref.key, ref.fault.reason, ref.fault.message)


def outcomes(path: Path | str, **sections) -> list[tuple]:
    return [outcome(ref) for ref in refs_of(path, **sections)]


def refused(path: Path | str, **sections) -> str:
    config: BuildConfig = make_config(path, "out", **sections)
    with pytest.raises(UsageError) as caught:
        check_sources(config)
    return str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"path,label\na.jpg,cat\nb.jpg,dog\n",
        b"\xef\xbb\xbfpath,label\na.jpg,cat\nb.jpg,dog\n",  # a byte order mark
        b"path,label\r\na.jpg,cat\r\nb.jpg,dog\r\n",
        b"path,label\ra.jpg,cat\rb.jpg,dog",
        b"\n\npath,label\n\na.jpg,cat\n   \n\nb.jpg,dog\n\n",  # blank lines
        b'"path","label"\n"a.jpg","cat"\n"b.jpg","dog"',
        b"label,,path\ncat,x,a.jpg\ndog,,b.jpg\n",  # a column without a name
        b"path,label\na.jpg,cat\nb.jpg,dog",  # no end of the last line
    ],
)
def test_csv_is_read_as_people_write_it(tmp_path, data):
    assert outcomes(write(tmp_path / "list.csv", data)) == [("a.jpg", "cat"), ("b.jpg", "dog")]


def test_tsv_and_json_lines(tmp_path):
    assert outcomes(write(tmp_path / "list.tsv", b"path\tlabel\na, b.jpg\tcat\n")) == [("a, b.jpg", "cat")]
    line = b'{"path": "a.jpg", "label": "cat"}'
    for name in ("list.jsonl", "list.ndjson"):
        assert outcomes(write(tmp_path / name, b"\xef\xbb\xbf" + line + b"\r\n\r\n")) == [("a.jpg", "cat")]


def test_compressed_listings_are_read_as_streams(tmp_path):
    listing = write(tmp_path / "list.csv.gz", gzip.compress(HEADER + b"a.jpg,cat\n"))
    assert outcomes(listing) == [("a.jpg", "cat")]
    write(listing, listing.read_bytes()[:-9])
    assert refused(listing) == (
        f"{listing} cannot be read: Compressed file ended before the end-of-stream marker was reached"
    )
    assert refused(write(listing, b"path,label\n")).startswith(f"{listing} cannot be read: Not a gzipped file")


def test_a_cell_may_hold_line_ends_and_what_follows_keeps_its_line(tmp_path):
    listing = write(tmp_path / "list.csv", b'path,label,note\na.jpg,cat,"two\nlines"\nb.jpg\n')
    assert outcomes(listing) == [("a.jpg", "cat"), ("list.csv line 4", Reason.BAD_ROW, "no cell for label")]


def test_an_open_quote_is_a_fault_and_not_a_silent_loss(tmp_path):
    listing = write(tmp_path / "list.csv", b'path,label,note\na.jpg,cat,x\nb.jpg,dog,"open\nc.jpg,cat,x\n')
    assert outcomes(listing) == [
        ("a.jpg", "cat"),
        (
            "list.csv line 4",
            Reason.BAD_ROW,
            "not well-formed: unexpected end of data; it swallowed the lines from 3 on",
        ),
    ]


def test_a_quote_inside_of_a_cell(tmp_path):
    listing = write(tmp_path / "list.csv", HEADER + b'"a"b.jpg,cat\nc"d.jpg,cat\n')
    assert outcomes(listing) == [
        ("list.csv line 2", Reason.BAD_ROW, "not well-formed: ',' expected after '\"'"),
        ('c"d.jpg', "cat"),
    ]


def test_a_huge_cell_is_a_fault_and_the_next_row_is_read(tmp_path):
    listing = write(tmp_path / "list.csv", HEADER + b"a" * 200_000 + b".jpg,cat\nb.jpg,dog\n")
    assert outcomes(listing) == [
        ("list.csv line 2", Reason.BAD_ROW, "not well-formed: field larger than field limit (131072)"),
        ("b.jpg", "dog"),
    ]


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(listings, "_LONGEST_LINE", 1000)
    listing = write(tmp_path / "list.jsonl", b'{"path": "a.jpg", "label": "cat"}\n' + b" " * 1000)
    assert refused(listing) == f"{listing} line 2 is longer than 1,000 characters; is it a listing?"


def test_bytes_that_are_no_text_cost_their_row_only(tmp_path):
    listing = write(tmp_path / "list.csv", HEADER + b"a.jpg,cat\nb.jpg,ch\xe2t\nc.jpg,cat\n")
    assert outcomes(listing) == [
        ("a.jpg", "cat"),
        ("list.csv line 3", Reason.BAD_ROW, "not UTF-8 text"),
        ("c.jpg", "cat"),
    ]
    listing = write(
        tmp_path / "list.jsonl",
        b'{"path": "a.jpg", "label": "cat"}\n{"path": "b.jpg", "label": "\xff"}\n'
        b'{"path": "b.jpg", "label": "x", "id": "\\ud800"}\n{"path": "c.jpg", "label": "\\ud83d\\ude00"}\n',
    )
    assert outcomes(listing) == [
        ("a.jpg", "cat"),
        ("list.jsonl line 2", Reason.BAD_ROW, "not UTF-8 text"),
        ("list.jsonl line 3", Reason.BAD_ROW, "not UTF-8 text"),
        ("c.jpg", "😀"),
    ]


def test_a_header_that_is_no_text_is_refused(tmp_path):
    listing = write(tmp_path / "list.csv", "path,label\na.jpg,cat\n".encode("utf-16"))
    assert refused(listing) == f"{listing}: its first line, which must name the columns, is not UTF-8 text"
    listing = write(tmp_path / "list.csv", "path,label\na.jpg,cat\n".encode("utf-16-le"))
    assert refused(listing).startswith(f"{listing} has no column 'path'; it has 'p\\x00a\\x00t\\x00h\\x00', ")


def test_null_bytes(tmp_path):
    listing = write(tmp_path / "list.csv", HEADER + b"a\0.jpg,cat\nb.jpg,c\0t\nc.jpg,cat\n")
    assert outcomes(listing) == [
        ("a\0.jpg", Reason.UNREADABLE, "embedded null byte"),
        ("list.csv line 3", Reason.BAD_ROW, "label 'c\\x00t' is blank or has unprintable characters"),
        ("c.jpg", "cat"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{'path': 1}", "not JSON: Expecting property name enclosed in double quotes"),
        (b'"a.jpg"', "not a JSON object"),
        (
            b"[" * 100_000,
            "not read: maximum recursion depth exceeded while decoding a JSON array from a unicode string",
        ),
        (b'{"path": ' + b"1" * 5000 + b"}", "not read: Exceeds the limit (4300 digits) for integer string conversion"),
        (b'{"label": "cat"}', "path is empty"),
        (b'{"path": "a.jpg", "label": ["cat", "dog"]}', "label holds ['cat', 'dog']; for several labels per input"),
    ],
)
def test_json_that_cannot_be_used(tmp_path, line, problem):
    listing = write(tmp_path / "list.jsonl", b'{"path": "a.jpg", "label": "cat"}\n' + line + b"\n")
    good, (key, reason, message) = outcomes(listing)
    assert good == ("a.jpg", "cat")
    assert (key, reason) == ("list.jsonl line 2", Reason.BAD_ROW)
    assert message.startswith(problem)


def test_a_missing_column_is_refused_and_named(tmp_path):
    listing = write(tmp_path / "list.csv", b"path,kind\na.jpg,cat\n")
    assert refused(listing) == (
        f"{listing} has no column 'label'; it has path, kind; "
        "if it is called otherwise, say so with source.fields: {label: its name}"
    )
    assert outcomes(listing, source={"fields": {"label": "kind"}}) == [("a.jpg", "cat")]
    assert refused(listing, source={"fields": {"path": "image", "label": "kind"}}).startswith(
        f"{listing} has no column 'image'; it has path, kind; "
    )
    assert "has no column 'age'" in refused(
        listing, source={"fields": {"label": "kind"}}, columns={"age": {"type": "int"}}
    )
    assert "has no column 'path'; it has a.jpg, cat; " in refused(write(listing, b"a.jpg,cat\nb.jpg,dog\n"))
    assert "it has ' label', path;" in refused(write(listing, b" label,path\n,\n"))


def test_json_lines_may_leave_fields_out(tmp_path):
    listing = write(tmp_path / "list.jsonl", b'{"path": "a.jpg"}\n{"path": "b.jpg", "label": "cat"}\n')
    assert outcomes(listing) == [("list.jsonl line 1", Reason.NO_LABEL, "label is empty"), ("b.jpg", "cat")]
    listing = write(tmp_path / "list.jsonl", b'{"path": "a.jpg"}\n' * 3)
    assert "has no column 'label'; it has path;" in refused(listing)


def test_listings_without_a_row_are_refused(tmp_path):
    for name, data in (("a.csv", HEADER), ("a.csv", b""), ("a.csv", b"\n \n"), ("a.jsonl", b"\n")):
        listing = write(tmp_path / name, data)
        assert refused(listing) == f"source.path {listing} lists no images"
    listing = write(tmp_path / "a.jsonl", b"[\n" + b'{"path": "a.jpg", "label": "cat"},\n' * 2 + b"]\n")
    assert refused(listing) == (f"{listing}: none of its first 4 rows can be read; line 1 is not JSON: Expecting value")


def test_an_empty_listing_among_others_is_none_of_our_business(tmp_path):
    write(tmp_path / "a.csv", HEADER)
    write(tmp_path / "b.csv", HEADER + b"a.jpg,cat\n")
    assert outcomes(f"{tmp_path}/*.csv") == [("a.jpg", "cat")]


def test_columns_of_one_name_are_refused(tmp_path):
    listing = write(tmp_path / "list.csv", b"path,label,label,,\na.jpg,cat,dog,,\n")
    assert refused(listing) == f"{listing} has two columns called 'label'; rename one of them"


def test_unknown_splits_are_faults_unless_given(tmp_path):
    listing = write(tmp_path / "list.csv", b"path,label,split\na.jpg,cat,train\nb.jpg,cat,trian\n")
    assert outcomes(listing)[1] == (
        "list.csv line 3",
        Reason.UNKNOWN_SPLIT,
        "split 'trian' is not one of train, validation, test nor a usual name; if it is meant, add it to splits.given",
    )
    assert [ref.split for ref in refs_of(listing, splits={"given": ["trian"]})] == ["train", "trian"]
    assert [ref.split for ref in refs_of(listing, source={"split": "test"})] == ["test", "test"]


def test_equal_ids_are_duplicates_and_equal_rows_are_listed_twice(tmp_path):
    write(tmp_path / "a.jpg", b"1")
    write(tmp_path / "b.jpg", b"2")
    listing = write(tmp_path / "list.csv", b"path,label,id\na.jpg,cat,7\nb.jpg,cat,7\na.jpg,dog,8\na.jpg,dog,8\n")
    marked = [(ref.key, ref.fault and ref.fault.reason) for ref in mark_duplicates(refs_of(listing))]
    assert marked == [("7", None), ("7", Reason.DUPLICATE_KEY), ("8", None), ("8", LISTED_TWICE)]


def test_keys_of_several_listings_are_relative_to_where_the_glob_looks(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.jpg", folder.encode())
        write(tmp_path / folder / "list.csv", HEADER + b"a.jpg,cat\n")
    refs = refs_of(f"{tmp_path}/*/list.csv")
    assert [(ref.key, ref.location.path, ref.fault) for ref in refs] == [
        ("one/a.jpg", f"{tmp_path}/one/a.jpg", None),
        ("two/a.jpg", f"{tmp_path}/two/a.jpg", None),
    ]
    (single,) = refs_of(tmp_path / "one" / "list.csv")
    assert single.key == "a.jpg"
    (rooted,) = refs_of(tmp_path / "one" / "list.csv", source={"root": str(tmp_path / "two")})
    assert (rooted.key, rooted.location.path) == ("a.jpg", f"{tmp_path}/two/a.jpg")


def metadata_folder(root: Path) -> Path:
    for split in ("train", "test"):
        (root / split).mkdir(parents=True)
        write(root / split / "0.jpg", split.encode())
        write(root / split / "metadata.csv", b"file_name,label\n0.jpg,cat\n")
    write(root / "train" / "unmentioned.jpg", b"x")
    return root


def test_hugging_face_folders_with_a_metadata_file_per_split(tmp_path):
    refs = refs_of(metadata_folder(tmp_path))
    assert [(ref.key, ref.split, ref.labels, ref.fault) for ref in refs] == [
        ("test/0.jpg", "test", ("cat",), None),
        ("train/0.jpg", "train", ("cat",), None),
    ]


def test_hugging_face_folders_with_one_metadata_file(tmp_path):
    metadata_folder(tmp_path)
    for split in ("train", "test"):
        (tmp_path / split / "metadata.csv").unlink()
    lines = b'{"file_name": "train/0.jpg", "label": 1}\n{"file_name": "0.jpg", "label": 2}\n'
    write(tmp_path / "metadata.jsonl", lines)
    assert [(ref.key, ref.split, *ref.labels) for ref in refs_of(tmp_path)] == [
        ("train/0.jpg", "train", "1"),
        ("0.jpg", "", "2"),
    ]
    write(tmp_path / "metadata.csv", b"file_name,label\n0.jpg,cat\n")
    assert refused(tmp_path) == f"source.path {tmp_path} has both metadata.csv and metadata.jsonl; set source.kind"
    assert outcomes(tmp_path, source={"kind": "csv"}) == [("0.jpg", "cat")]


def test_a_class_folder_may_hold_a_metadata_file_of_another_kind(tmp_path):
    (tmp_path / "cat").mkdir()
    write(tmp_path / "cat" / "a.jpg", b"x")
    write(tmp_path / "metadata.csv", b"camera,owner\nx,y\n")
    assert outcomes(tmp_path) == [("cat/a.jpg", "cat")]


def keys_or_refusal(path: Path) -> list[bytes] | str:
    try:
        return [ref.key.encode() for ref in refs_of(path)]
    except UsageError as error:
        return str(error)


@given(data=st.binary(max_size=300))
def test_no_bytes_are_a_traceback(tmp_path_factory, data):
    for suffix in ("csv", "tsv", "jsonl"):
        header = {"csv": HEADER, "tsv": b"path\tlabel\n", "jsonl": b""}[suffix]
        assert keys_or_refusal(write(tmp_path_factory.getbasetemp() / f"any.{suffix}", header + data))
