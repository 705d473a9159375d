"""Rows of every kind of source as refs: labels, targets, columns, boxes, and what is said of bad ones."""

import datetime
import json
import math
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import make_config
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import BuildConfig, ColumnConfig
from pipelines.planning.listing import Listing
from pipelines.planning.plan import make_plan, sort_labels
from pipelines.reasons import Reason
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.sources.base import Partition, Row
from pipelines.sources.cells import as_list, cast, shown, split_text, text_of
from pipelines.sources.rows import RowReader, read_names
from pipelines.values import InputRef, Location
from shards.errors import UsageError

LOCATION = Location("a.npy", 12, offset=0)
INT, FLOAT, TEXT = (ColumnConfig(type=kind) for kind in ("int", "float", "text"))


def read(values: dict[str, Any], *, label: str = "", **sections: Any) -> InputRef:
    """The ref of a row with these values."""
    config = make_config("x", "y", **sections)
    reader = RowReader(config.all_sources[0], config, read_names(config))
    return reader.ref(Row("line 1", "k", values, LOCATION), Partition(0, "jsonl", "x", ".", label=label))


def names_file(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


# Labels


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("cat", "cat"),
        (7, "7"),
        (-3, "-3"),
        (3.0, "3"),  # a table with gaps holds its ints as floats
        (1.5, "1.5"),
        (True, "True"),
        (b"chat", "chat"),
        (np.int64(5), "5"),
        (np.float32(2), "2"),
        (np.str_("x"), "x"),
        (np.bytes_(b"x"), "x"),
        (np.array(4), "4"),
        (np.array([4]), "4"),  # as TFRecords hold it
        (["only"], "only"),
        (Decimal("12"), "12"),
        ("e\u0301", "é"),  # NFC
        ("[a]", "[a]"),
        ("a|b", "a|b"),
        ("\ud800", "\\ud800"),  # half of a surrogate pair, which JSON can hold, is spelt out
        (datetime.date(2024, 5, 6), "2024-05-06"),
    ],
)
def test_a_single_label_is_text(value, label):
    assert read({"label": value}).labels == (label,)


@pytest.mark.parametrize("value", [None, "", math.nan, np.float64("nan"), [], np.array([]), np.datetime64("NaT")])
def test_no_label_is_a_fault_of_its_own(value):
    assert read({"label": value}).fault == (Reason.NO_LABEL, "label is empty")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["a", "b"], "label holds ['a', 'b']; for several labels per input set labels.kind to multi"),
        (np.array([1, 2]), "label holds [1, 2]; for several labels per input set labels.kind to multi"),
        ("a\nb", "label 'a\\nb' is blank or has unprintable characters"),
        ("  ", "label '  ' is blank or has unprintable characters"),
    ],
)
def test_labels_that_cannot_be_used(value, problem):
    assert read({"label": value}).fault == (Reason.BAD_ROW, problem)


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["b", "a", "b"], ("b", "a")),
        ([], ()),
        (None, ()),
        ("", ()),
        ("a|b", ("a", "b")),
        (" a | b |", ("a", "b")),
        ("a", ("a",)),
        ('["a", "b"]', ("a", "b")),
        ('["a|b"]', ("a|b",)),
        (["a|b"], ("a|b",)),
        ("[1, 2]", ("1", "2")),
        ("[]", ()),
        ("[a]|b", ("[a]", "b")),  # starts with a bracket, but is no JSON
        (7, ("7",)),
        (np.array([3, 1]), ("3", "1")),
        ((b"x", b"y"), ("x", "y")),
        ([None, "a"], ("a",)),
    ],
)
def test_multi_labels_are_a_list_or_a_text_with_separators(value, labels):
    ref = read({"label": value}, labels={"kind": "multi"})
    assert (ref.labels, ref.fault) == (labels, None)


def test_the_separator_is_the_configs():
    assert read({"label": "a; b|c"}, labels={"kind": "multi", "separator": ";"}).labels == ("a", "b|c")


def test_one_bad_label_of_several_is_the_rows_fault():
    assert read({"label": ["a", "b\t"]}, labels={"kind": "multi"}).fault == (
        Reason.BAD_ROW,
        "label 'b\\t' is blank or has unprintable characters",
    )


def test_without_labels_nothing_of_the_row_or_folder_is_one():
    ref = read({"label": "cat", "target": 3}, label="folder", labels={"kind": "none"})
    assert (ref.labels, ref.target, ref.fault) == ((), (), None)


@pytest.mark.parametrize(
    ("value", "length", "target"),
    [
        (1.5, 1, (1.5,)),
        ("1.5", 1, (1.5,)),
        ("-1|2e3", 2, (-1.0, 2000.0)),
        ("[1, 2.5]", 2, (1.0, 2.5)),
        ([1, 2], 2, (1.0, 2.0)),
        (np.array([1, 2], np.float32), 2, (1.0, 2.0)),
        (np.float32(0.5), 1, (0.5,)),
        (Decimal("2.25"), 1, (2.25,)),
        (True, 1, (1.0,)),
    ],
)
def test_regression_targets(value, length, target):
    ref = read({"target": value}, labels={"kind": "regression", "length": length})
    assert (ref.target, ref.labels, ref.fault) == (target, (), None)
    assert all(type(part) is float for part in ref.target)


@pytest.mark.parametrize(
    ("value", "reason", "problem"),
    [
        (None, Reason.NO_LABEL, "target is empty"),
        ("", Reason.NO_LABEL, "target is empty"),
        (math.nan, Reason.NO_LABEL, "target is empty"),
        ([1, 2, 3], Reason.BAD_ROW, "target holds [1, 2, 3], 3 values, but labels.length is 2"),
        (5, Reason.BAD_ROW, "target holds 5, 1 values, but labels.length is 2"),
        ("1|x", Reason.BAD_ROW, "target holds 'x', which is not float"),
        ([1, math.inf], Reason.BAD_ROW, "target holds inf, which is not float"),
        ([1, None], Reason.BAD_ROW, "target holds None, which is not float"),
        ([1, [2]], Reason.BAD_ROW, "target holds [2], which is not float"),
    ],
)
def test_targets_that_cannot_be_used(value, reason, problem):
    assert read({"label": value}, labels={"kind": "regression", "length": 2}).fault == (reason, problem)


def test_with_a_names_file_integers_are_line_numbers(tmp_path):
    labels = {"names": names_file(tmp_path / "names.txt", "zebra\r\nape\r\ngnu\r\n\r\n")}
    assert [read({"label": value}, labels=labels).labels for value in (0, "1", 2.0, np.int32(2), "ape")] == [
        ("zebra",), ("ape",), ("gnu",), ("gnu",), ("ape",),
    ]  # fmt: skip
    assert read({"label": [2, 0]}, labels=labels | {"kind": "multi"}).labels == ("gnu", "zebra")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, "label 3 is no id: labels.names has 3 names, from 0"),
        (-1, "label -1 is no id: labels.names has 3 names, from 0"),
        ("cow", "label 'cow' is not one of the 3 names in labels.names"),
        (1.5, "label '1.5' is not one of the 3 names in labels.names"),
        ("9" * 5000, f"label '{'9' * 56}... is not one of the 3 names in labels.names"),
    ],
)
def test_an_unknown_id_or_name_is_a_bad_row(tmp_path, value, problem):
    labels = {"names": names_file(tmp_path / "names.txt", "zebra\nape\ngnu\n")}
    assert read({"label": value}, labels=labels).fault == (Reason.BAD_ROW, problem)


def test_the_names_keep_their_order_as_ids(tmp_path):
    config = make_config("x", "y", labels={"names": names_file(tmp_path / "names.txt", "zebra\nape\ngnu\n")})
    listing = Listing().add(read({"label": 2}, labels={"names": config.labels.names}), config)
    plan = make_plan(listing, config, label_names=read_names(config))
    assert (plan.labels, plan.label_counts) == (("zebra", "ape", "gnu"), {"zebra": 0, "ape": 0, "gnu": 1})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", " has no names"),
        (b"\n\n", " has no names"),
        (b"a\n\nb\n", " line 2: label '' is blank or has unprintable characters"),
        (b"a\nb\x07\n", " line 2: label 'b\\x07' is blank or has unprintable characters"),
        (b"a\nb\na\n", " has 'a' twice; every class needs a name of its own"),
        (b"\xff\xfe", " is not UTF-8 text"),
        (None, " cannot be read: No such file or directory"),
    ],
)
def test_names_files_that_cannot_work_are_refused_before_work_starts(tmp_path, content, problem):
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "cat").mkdir()
    with pytest.raises(UsageError) as caught:
        check_sources(make_config(tmp_path, "y", labels={"names": str(path)}))
    assert str(caught.value) == f"labels.names {path}{problem}"


def test_integer_labels_sort_by_value_and_others_by_name():
    assert sort_labels(["10", "9", "-1", "0"]) == ("-1", "0", "9", "10")
    assert sort_labels(["10", "9", "x"]) == ("10", "9", "x")
    assert sort_labels(["010", "9"]) == ("010", "9")  # not how ints are written, so these are names


def test_inputs_that_have_nothing_for_a_setting_are_refused():
    config = make_config("x", "y", labels={"kind": "multi"})
    with pytest.raises(UsageError, match=r"^no input has a label; for data without labels set labels.kind to none$"):
        make_plan(Listing().add(read({}, labels={"kind": "multi"}), config), config)
    config = make_config("x", "y", boxes={})
    row = read({"label": 1}, boxes={})._replace(location=Location("a", 8, 0, form="<f4:2"))
    with pytest.raises(UsageError, match=r"^boxes need pictures, the inputs are rows of 2 features; remove boxes$"):
        make_plan(Listing().add(row, config), config)


# Columns


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3), ("3", 3), (" 3 ", 3), ("+3", 3), ("-0", 0), (3.0, 3), ("3.0", 3), ("3e2", 300), (b"3", 3),
        (True, 1), (False, 0), ("true", 1), ("False", 0), (np.bool_(True), 1),
        (np.int8(-5), -5), (np.uint64(2**63 - 1), 2**63 - 1), (np.float32(4), 4), (np.array(6), 6),
        (Decimal("7"), 7), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (str(2**63 - 1), 2**63 - 1),
    ],
)  # fmt: skip
def test_what_is_an_int(value, number):
    found = cast(value, INT)
    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize(
    "value",
    [
        None, "", "x", "1.5", 1.5, "1_000", "nan", math.nan, math.inf, "1e999999999", 2**63, str(2**63), -(2**63) - 1,
        Decimal("1.5"), Decimal("NaN"), [1], {"a": 1}, np.array([1]), np.uint64(2**63), datetime.date(2024, 1, 1),
        "0x10",
    ],
)  # fmt: skip
def test_what_is_no_int(value):
    fault = read({"label": "a", "n": value}, columns={"n": {"type": "int"}}).fault
    assert fault.reason == Reason.BAD_ROW
    several = "; for several values set columns.n.list to true"
    told = several if isinstance(value, list | dict | np.ndarray) else ", which is not int"
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    assert fault.message == f"column n holds {shown(plain)}{told}"


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0), ("1.5", 1.5), ("-2e3", -2000.0), (b"0.5", 0.5), (True, 1.0), (Decimal("0.25"), 0.25),
        (np.float16(0.5), 0.5), (np.int64(3), 3.0), (np.float32(0.1), float(np.float32(0.1))), (LARGEST, LARGEST),
    ],
)  # fmt: skip
def test_what_is_a_float(value, number):
    found = cast(value, FLOAT)
    assert (found, type(found)) == (number, float)


@pytest.mark.parametrize("value", [None, "", "x", "1_0.5", "nan", math.inf, 1e39, "1e400", 10**400, [1.0], b"\xff"])
def test_what_is_no_float(value):
    with pytest.raises((TypeError, ValueError)):
        cast(value, FLOAT)
    assert read({"label": "a", "x": value}, columns={"x": {"type": "float"}}).fault.reason == Reason.BAD_ROW


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("größe 玫瑰 \U0001f98a", "größe 玫瑰 \U0001f98a"),
        ("", ""), (None, ""), (math.nan, ""), ("  kept  ", "  kept  "),
        ("two\nlines", "two\nlines"), (3, "3"), (3.0, "3.0"), (True, "True"), (b"bytes", "bytes"), (b"\xff", "\\xff"),
        (np.int64(3), "3"), (Decimal("1.50"), "1.50"), (datetime.date(2024, 5, 6), "2024-05-06"),
        (datetime.datetime(2024, 5, 6, 7, 8), "2024-05-06T07:08:00"), (datetime.time(7, 8), "07:08:00"),
        (np.datetime64("2024-05-06T07:08:09.123456789"), "2024-05-06T07:08:09.123456"), ("\ud800", "\\ud800"),
        ("[1, 2]", "[1, 2]"),
    ],
)  # fmt: skip
def test_what_is_text(value, text):
    assert cast(value, TEXT) == text
    text.encode()


def test_columns_of_arrow_types_keep_their_type():
    table = pa.table({
        "label": pa.array(["a"]),
        "d": pa.array([Decimal("3.00")], pa.decimal128(9, 2)),
        "t": pa.array([datetime.datetime(2024, 5, 6, 7)], pa.timestamp("us", tz="UTC")),
        "b": pa.array([True]),
        "i": pa.array([2**40], pa.int64()),
        "f": pa.array([0.5], pa.float32()),
        "l": pa.array([[1, 2, 3]], pa.list_(pa.int32())),
        "c": pa.array(["red"]).dictionary_encode(),
    })  # fmt: skip
    kinds = {"d": "int", "t": "text", "b": "int", "i": "int", "f": "float", "c": "text"}
    columns: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()} | {
        "l": {"type": "int", "list": True}
    }
    ref = read(table.to_pylist()[0], columns=columns)
    assert ref.columns == (3, "2024-05-06T07:00:00+00:00", 1, 2**40, 0.5, "red", (1, 2, 3))


@pytest.mark.parametrize(
    ("value", "kind", "cells"),
    [
        ([1, 2], "int", (1, 2)), ("[1, 2]", "int", (1, 2)), ("7", "int", (7,)), (7, "int", (7,)), ("", "int", ()),
        (None, "int", ()), ("[]", "float", ()), ("[1, 2.5]", "float", (1.0, 2.5)), ('["a", "ü"]', "text", ("a", "ü")),
        ("a, b", "text", ("a, b",)), (np.array([1.5, 2]), "float", (1.5, 2.0)), ((1, True), "int", (1, 1)),
        ({3}, "int", (3,)), (iter([1, 2]), "int", (1, 2)),
    ],
)  # fmt: skip
def test_list_columns(value, kind, cells):
    ref = read({"label": "a", "l": value}, columns={"l": {"type": kind, "list": True}})
    assert (ref.columns, ref.fault) == ((cells,), None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("[1, 2", "column l holds '[1, 2', which is not a JSON list"),
        ("[" * 100_000, f"column l holds '{'[' * 56}..., which is not a JSON list"),
        ("[1, null]", "column l holds None, which is not int"),
        ([1, "x"], "column l holds 'x', which is not int"),
        ([[1], [2]], "column l holds [1], which is not int"),
        ({"a": 1}, "column l holds {'a': 1}, which is not int"),
    ],
)
def test_list_columns_that_cannot_be_used(value, problem):
    assert read({"label": "a", "l": value}, columns={"l": {"type": "int", "list": True}}).fault == (
        Reason.BAD_ROW,
        problem,
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_any_list_of_ints_survives_json_in_a_cell(numbers):
    ref = read({"label": "a", "l": json.dumps(numbers)}, columns={"l": {"type": "int", "list": True}})
    assert ref.columns == (tuple(numbers),)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_no_value_can_stop_the_listing(value):
    columns = {"i": {"type": "int"}, "f": {"type": "float"}, "t": {"type": "text"}, "l": {"type": "int", "list": True}}
    for name in ("label", "boxes", "id", "group", "split", *columns):
        for kind in ("single", "multi", "regression"):
            row = {"label": "1", "i": 1, "f": 1, "t": "", "boxes": []} | {name: value}
            ref = read(row, columns=columns, boxes={}, labels={"kind": kind})
            assert ref.fault is None or ref.fault.message
            json.dumps(ref[:10]).encode()
            str(ref).encode()


# Fields


def test_fields_rename_and_reach_into_mappings():
    values = {"klass": "a", "objects": {"bbox": [[1, 2, 3, 4]], "more": {"kind": ["x"]}}, "a.b": 5, "a": {"b": 6}}
    fields = {"label": "klass", "boxes": "objects.bbox", "kind": "objects.more.kind", "n": "a.b"}
    columns = {"kind": {"type": "text", "per": "box"}, "n": {"type": "int"}}
    ref = read(values, source={"fields": fields}, boxes={}, columns=columns)
    assert (ref.labels, ref.boxes, ref.columns) == (("a",), ((1, 2, 3, 4),), (("x",), 5))
    missing = read({"klass": "a", "objects": 3}, source={"fields": fields}, boxes={}, columns=columns)
    assert missing.fault == (Reason.BAD_ROW, "column n holds None, which is not int")


def listing(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    (tmp_path / "a.jpg").write_bytes(b"x")
    path = tmp_path / "metadata.jsonl"
    path.write_text("".join(json.dumps({"file_name": "a.jpg"} | row) + "\n" for row in rows))
    return path


def refs_of(config: BuildConfig) -> list[InputRef]:
    check_sources(config)
    return [ref for part in partition_sources(config) for ref in list_partition(part, config)]


def test_a_detection_listing_of_hugging_face(tmp_path):
    path = listing(tmp_path, {"objects": {"bbox": [[302.0, 109.0, 73.0, 52.0]], "categories": [4]}})
    config = make_config(
        path,
        "y",
        source={"fields": {"boxes": "objects.bbox", "category": "objects.categories"}},
        labels={"kind": "none"},
        boxes={"format": "xywh"},
        columns={"category": {"type": "int", "per": "box"}},
    )
    (ref,) = refs_of(config)
    assert (ref.boxes, ref.columns, ref.fault) == (((302.0, 109.0, 375.0, 161.0),), ((4,),), None)


def test_a_listing_without_the_nested_field_is_refused(tmp_path):
    config = make_config(listing(tmp_path, {"label": "a"}), "y", source={"fields": {"boxes": "objects.bbox"}}, boxes={})
    with pytest.raises(UsageError, match="has no column 'objects.bbox'; it has file_name, label; if it is called"):
        check_sources(config)


def test_paths_may_be_path_objects_and_must_be_text(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"123")
    config = make_config("x", "y")
    reader = RowReader(config.all_sources[0], config)
    part = Partition(0, "python", "x", str(tmp_path))

    def located(path: Any) -> InputRef:
        return reader.ref(Row("row 1", "", {"path": path, "label": "a"}), part)

    for path in ("a.jpg", b"a.jpg", PurePosixPath("a.jpg"), tmp_path / "a.jpg"):
        assert (located(path).key, located(path).location.size, located(path).fault) == ("a.jpg", 3, None)
    assert located("").fault == (Reason.BAD_ROW, "path is empty")
    assert located(None).fault == (Reason.BAD_ROW, "path is empty")
    assert located("\ud800.jpg").fault == (Reason.BAD_ROW, "path '\\ud800.jpg' is not text")
    assert located("a\0.jpg").fault == (Reason.UNREADABLE, "embedded null byte")


# Boxes


@pytest.mark.parametrize(
    ("value", "boxes"),
    [
        ([[1, 2, 3, 4]], ((1, 2, 3, 4),)),
        ("[[1, 2, 3, 4], [5, 6, 7, 8]]", ((1, 2, 3, 4), (5, 6, 7, 8))),
        ([1, 2, 3, 4, 5, 6, 7, 8], ((1, 2, 3, 4), (5, 6, 7, 8))),
        ("[1, 2, 3, 4]", ((1, 2, 3, 4),)),
        (np.array([[1, 2, 3, 4]], np.int16), ((1, 2, 3, 4),)),
        ([np.array([1.5, 2, 3, 4])], ((1.5, 2, 3, 4),)),
        ([["1", "2", "3", "4"]], ((1, 2, 3, 4),)),
        (np.zeros((0, 4)), ()),
        ([], ()),
        (None, ()),
        ("", ()),
        ("[]", ()),
    ],
)
def test_boxes_are_lists_flat_lists_or_json(value, boxes):
    ref = read({"label": "a", "boxes": value}, boxes={})
    assert (ref.boxes, ref.fault) == (boxes, None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([[1, 2, 3]], "box 1 holds [1, 2, 3], which is not four numbers"),
        ([[1, 2, 3, 4], [1, 2, 3, "x"]], "box 2 holds [1, 2, 3, 'x'], which is not four numbers"),
        ([[1, 2, 3, None]], "box 1 holds [1, 2, 3, None], which is not four numbers"),
        ([[1, 2, 3, math.inf]], "box 1 holds [1, 2, 3, inf], which is not four numbers"),
        ([[3, 2, 1, 4]], "box 1 holds [3, 2, 1, 4], which has no area as xyxy"),
        ([[1, 2, 1, 4]], "box 1 holds [1, 2, 1, 4], which has no area as xyxy"),
        ([1, 2, 3, 4, 5], "boxes holds [1, 2, 3, 4, 5], 5 numbers, which are no boxes of four"),
        ("1 2 3 4", "boxes holds ['1 2 3 4'], 1 numbers, which are no boxes of four"),
        ("[[1, 2", "boxes holds '[[1, 2', which is not a JSON list"),
        ({"x": 1}, "box 1 holds {'x': 1}, which is not four numbers"),
    ],
)
def test_boxes_that_cannot_be_used(value, problem):
    assert read({"label": "a", "boxes": value}, boxes={}).fault == (Reason.BAD_ROW, problem)


def test_columns_per_box_must_be_in_step():
    columns = {"kind": {"type": "text", "per": "box"}}
    values = {"label": "a", "boxes": [[1, 2, 3, 4], [1, 2, 3, 4]]}
    assert read(values | {"kind": '["x", "y"]'}, boxes={}, columns=columns).columns == (("x", "y"),)
    assert read(values | {"kind": ["x"]}, boxes={}, columns=columns).fault == (
        Reason.BAD_ROW,
        "column kind holds 1 values for 2 boxes",
    )


def test_lists_from_whatever_holds_them():
    assert as_list(range(3)) == [0, 1, 2]
    assert as_list({"a": 1}) == [{"a": 1}]
    assert split_text("a|b", "|") == ["a", "b"]
    assert text_of(1e300) == str(int(1e300))
