"""NumPy files as sources: which bytes a row refers to, what is refused before work, and memory that stays flat."""

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import tensorflow_transform as tft
from conftest import make_config, run_build
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from pipelines.config import BuildConfig
from pipelines.pictures.forms import parse_form
from pipelines.pictures.process import read_input
from pipelines.reasons import Reason, RejectedImage
from pipelines.sources import array_rows, check_sources, list_partition, partition_sources, stored_arrays
from pipelines.sources.arrays import Archive, open_npy
from pipelines.sources.stored_arrays import read_blocks
from pipelines.values import InputRef
from shards.errors import UsageError
from shards.example import decode_example
from shards.manifest import Manifest, SplitEntry
from shards.records import read_records
from shards.verify import verify

UNLABELLED = {"kind": "none"}
ROWS = np.arange(5 * 3, dtype=np.float32).reshape(5, 3) / 7
LABELS = np.array([1, 0, 1, 1, 0], np.int32)


def list_all(config: BuildConfig, spool: Path | str = "") -> list[InputRef]:
    check_sources(config)
    return [ref for part in partition_sources(config) for ref in list_partition(part, config, str(spool))]


def content(ref: InputRef, config: BuildConfig) -> np.ndarray[Any, Any]:
    """The array that a ref refers to, as a decoder would read it."""
    dtype, shape = parse_form(ref.location.form)
    return np.frombuffer(read_input(ref.location, config.image), dtype).reshape(shape)


def contents(config: BuildConfig, spool: Path | str = "") -> np.ndarray[Any, Any]:
    return np.stack([content(ref, config) for ref in list_all(config, spool)])


def refusal(config: BuildConfig) -> str:
    with pytest.raises(UsageError) as error:
        check_sources(config)
    return str(error.value)


def save_npy(path: Path, array: np.ndarray[Any, Any]) -> Path:
    np.save(path, array)
    return path


def npz_config(folder: Path, arrays: dict[str, Any], *, compressed: bool = False, **sections: Any) -> BuildConfig:
    (np.savez_compressed if compressed else np.savez)(folder / "data.npz", **arrays)
    return make_config(folder / "data.npz", folder / "out", **sections)


class TestNpy:
    def test_rows_are_referenced_in_place(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", ROWS)
        config = make_config(path, tmp_path / "out", labels=UNLABELLED)
        (part,) = partition_sources(config)
        refs = list_all(config)
        assert not part.spooled
        assert [ref.key for ref in refs] == [f"x.npy/{row}" for row in range(5)]
        assert {ref.location.path for ref in refs} == {str(path)}
        assert refs[0].location.form == "<f4:3"
        np.testing.assert_array_equal(contents(config), ROWS)

    def test_a_file_that_changes_after_the_listing_is_not_read(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", ROWS)
        config = make_config(path, tmp_path / "out", labels=UNLABELLED)
        refs = list_all(config)
        save_npy(path, ROWS + 1)
        os.utime(path, ns=(0, 0))
        with pytest.raises(RejectedImage) as error:
            content(refs[3], config)
        assert str(error.value) == "changed: the file was modified after it was listed; build again"

    def test_labels_come_from_a_file_of_their_own(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", ROWS)
        labels = save_npy(tmp_path / "y.npy", np.array(["köter", "cat", "cat", "dog", "dog"]))
        config = make_config(path, tmp_path / "out", source={"labels_path": str(labels)})
        assert [ref.labels for ref in list_all(config)] == [("köter",), ("cat",), ("cat",), ("dog",), ("dog",)]

    def test_labels_of_several_files_are_paired_by_name(self, tmp_path):
        for number in range(2):
            save_npy(tmp_path / f"x{number}.npy", ROWS + number)
            save_npy(tmp_path / f"y{number}.npy", LABELS + 10 * number)
        source = {"labels_path": str(tmp_path / "y*.npy")}
        refs = list_all(make_config(tmp_path / "x*.npy", tmp_path / "out", source=source))
        assert [(ref.key, *ref.labels) for ref in refs[4:7]] == [
            ("x0.npy/4", "0"),
            ("x1.npy/0", "11"),
            ("x1.npy/1", "10"),
        ]
        (tmp_path / "y1.npy").unlink()
        told = refusal(make_config(tmp_path / "x*.npy", tmp_path / "out", source=source))
        assert told == f"source.labels_path {tmp_path}/y*.npy names 1 files, but source.path {tmp_path}/x*.npy 2"

    def test_ranges_of_rows_are_listed_apart(self, tmp_path, monkeypatch):
        monkeypatch.setattr(array_rows, "_PARTITION_ROWS", 2)
        labels = save_npy(tmp_path / "y.npy", LABELS)
        config = make_config(save_npy(tmp_path / "x.npy", ROWS), tmp_path / "out", source={"labels_path": str(labels)})
        assert [(part.first, part.end) for part in partition_sources(config)] == [(0, 2), (2, 4), (4, 5)]
        assert [(ref.key, *ref.labels) for ref in list_all(config)] == [
            (f"x.npy/{row}", str(label)) for row, label in enumerate(LABELS)
        ]
        np.testing.assert_array_equal(contents(config), ROWS)

    @pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">i2", "<u8", "|b1", "|u1"])
    def test_bytes_are_kept_whatever_the_type(self, tmp_path, dtype):
        path = save_npy(tmp_path / "x.npy", (ROWS * 10).astype(dtype))
        read = contents(make_config(path, tmp_path / "out", labels=UNLABELLED))
        assert read.dtype == np.dtype(dtype).newbyteorder("=") or read.dtype.str == dtype
        np.testing.assert_array_equal(read, (ROWS * 10).astype(dtype))

    def test_fortran_order_is_spooled_by_ranges(self, tmp_path, monkeypatch):
        monkeypatch.setattr(stored_arrays, "_BLOCK_ROWS", 2)
        monkeypatch.setattr(array_rows, "_PARTITION_ROWS", 4)
        pictures = np.arange(5 * 4 * 3 * 3).astype(np.uint8).reshape(5, 4, 3, 3)
        path = save_npy(tmp_path / "x.npy", np.asfortranarray(pictures))
        config = make_config(path, tmp_path / "out", labels=UNLABELLED)
        assert [part.spooled for part in partition_sources(config)] == [True, True]
        np.testing.assert_array_equal(contents(config, tmp_path / "spool"), pictures)

    def test_a_dry_run_lists_the_same_without_copying(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", np.asfortranarray(ROWS))
        config = make_config(path, tmp_path / "out", labels=UNLABELLED)
        dry, real = list_all(config), list_all(config, tmp_path / "spool")
        assert [ref.key for ref in dry] == [ref.key for ref in real]
        assert [(ref.location.size, ref.location.form) for ref in dry] == [(12, "<f4:3")] * 5

    def test_objects_are_refused(self, tmp_path):
        path = tmp_path / "x.npy"
        np.save(path, np.array([[{"a": 1}, None]], dtype=object), allow_pickle=True)
        assert refusal(make_config(path, tmp_path / "out", labels=UNLABELLED)) == (
            f"{path} holds Python objects, which are not loaded: a pickle can run any code; save numbers instead"
        )

    def test_labels_are_needed(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", ROWS)
        told = f"{path} has no labels; set source.labels_path, or labels.kind: none"
        assert refusal(make_config(path, tmp_path / "out")) == told
        missing = make_config(path, tmp_path / "out", source={"labels_path": f"{tmp_path}/y.npy"})
        assert refusal(missing) == f"source.labels_path {tmp_path}/y.npy: No such file or directory"

    def test_labels_of_another_length_are_refused(self, tmp_path):
        path, labels = save_npy(tmp_path / "x.npy", ROWS), save_npy(tmp_path / "y.npy", LABELS[:4])
        config = make_config(path, tmp_path / "out", source={"labels_path": str(labels)})
        assert refusal(config) == f"{labels} has 4 rows, but {path} has 5"

    def test_a_cut_file_is_refused(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", ROWS)
        path.write_bytes(path.read_bytes()[:-1])
        config = make_config(path, tmp_path / "out", labels=UNLABELLED)
        assert refusal(config) == f"{path} has 59 bytes of elements; its shape (5, 3) needs 60"

    def test_columns_and_boxes_are_refused(self, tmp_path):
        path = save_npy(tmp_path / "x.npy", ROWS)
        config = make_config(path, tmp_path / "out", labels=UNLABELLED, columns={"age": {"type": "int"}})
        assert refusal(config) == f"source.path {path} holds one array and no column 'age'; use an .npz file"
        config = make_config(path, tmp_path / "out", labels=UNLABELLED, boxes={})
        assert refusal(config) == f"{path} has no boxes: arrays hold none; use a listing or a table"

    @pytest.mark.parametrize(
        ("array", "told"),
        [
            (np.zeros(4), "{} has shape (4,); the first axis counts the inputs, others are missing"),
            (np.array(3.5), "{} has shape (); the first axis counts the inputs, others are missing"),
            (np.zeros((2, 3), complex), "{}: rows of complex128 are not features; they must be numbers"),
            (np.zeros((2, 3, 4), int), "{}: pictures of int64 are not read; they must be uint8, or float from 0 to 1"),
            (np.zeros((2, 0, 4), np.uint8), "{}: pictures of shape (0, 4) have no pixels"),
            (
                np.zeros((2, 3, 8, 9), np.uint8),
                "{}: inputs of shape (3, 8, 9) have their channels first; move them last (numpy.moveaxis)",
            ),
            (
                np.zeros((1, 8, 9, 2), np.uint8),
                "{}: inputs of shape (8, 9, 2) are neither pictures (height, width[, channels]) nor rows of features",
            ),
            (np.zeros((1, 20, 60), np.uint8), "{} holds pictures of 0.0012 megapixels; image.max_megapixels is 0.001"),
        ],
    )  # fmt: skip
    def test_arrays_that_are_no_inputs(self, tmp_path, array, told):
        path = save_npy(tmp_path / "x.npy", array)
        config = make_config(path, tmp_path / "out", labels=UNLABELLED, image={"max_megapixels": 0.001})
        assert refusal(config) == told.format(path)

    @settings(deadline=None)
    @given(data=st.data())
    def test_a_damaged_header_never_ends_in_a_traceback(self, tmp_path_factory, data):
        path = save_npy(tmp_path_factory.mktemp("npy") / "x.npy", ROWS)
        damaged = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged)
        array = None
        with contextlib.suppress(UsageError):
            array = open_npy(str(path))
        assert array is None or array.dtype.itemsize * np.prod(array.shape) == 60


class TestNpz:
    @pytest.mark.parametrize("compressed", [False, True])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_rows_and_labels(self, tmp_path, compressed, order):
        config = npz_config(tmp_path, {"labels": LABELS, "data": ROWS.copy(order)}, compressed=compressed)
        (part,) = partition_sources(config)
        assert part.spooled == (compressed or order == "F")
        refs = list_all(config, tmp_path / "spool")
        assert [(ref.key, *ref.labels) for ref in refs] == [
            ("data.npz/0", "1"), ("data.npz/1", "0"), ("data.npz/2", "1"), ("data.npz/3", "1"), ("data.npz/4", "0"),
        ]  # fmt: skip
        np.testing.assert_array_equal(contents(config, tmp_path / "spool"), ROWS)

    def test_stored_members_are_read_inside_of_the_zip_file(self, tmp_path):
        config = npz_config(tmp_path, {"data": ROWS, "labels": LABELS})
        ref = list_all(config)[4]
        assert ref.location.path == f"{tmp_path}/data.npz"
        file = Path(ref.location.path).read_bytes()
        assert file[ref.location.offset : ref.location.offset + ref.location.size] == ROWS[4].tobytes()

    def test_other_compressions_and_a_prefix_before_the_zip_file(self, tmp_path):
        np.savez(tmp_path / "plain.npz", data=ROWS, labels=LABELS)
        with zipfile.ZipFile(tmp_path / "plain.npz") as plain, (tmp_path / "data.npz").open("wb") as stream:
            stream.write(b"#!/bin/sh\n")
            with zipfile.ZipFile(stream, "w") as other:
                other.writestr("data.npy", plain.read("data.npy"), zipfile.ZIP_STORED)
                other.writestr("labels.npy", plain.read("labels.npy"), zipfile.ZIP_LZMA)
        config = make_config(tmp_path / "data.npz", tmp_path / "out")
        (part,) = partition_sources(config)
        assert not part.spooled
        assert [ref.labels[0] for ref in list_all(config)] == ["1", "0", "1", "1", "0"]
        np.testing.assert_array_equal(contents(config), ROWS)

    def test_fields_map_other_names_and_extra_arrays_are_columns(self, tmp_path):
        arrays = {
            "x_train": (ROWS[:, :, None] * np.ones(4)).astype(np.float64) / 3,
            "y_train": LABELS[:, None],
            "age": np.array([1.5, 2, 3, 4, 5], np.float16),
            "words": np.array([b"a", b"bc", b"", b"d", b"e"]),
            "tags": np.arange(10).reshape(5, 2),
            "split": np.array(["train", "test", "train", "train", "oops"]),
            "person": np.array([7, 7, 8, 8, 8]),
            "id": np.array(["p", "q", "r", "s", "t"]),
        }
        config = npz_config(
            tmp_path,
            arrays,
            source={"fields": {"image": "x_train", "label": "y_train", "group": "person", "text": "words"}},
            columns={"age": {"type": "float"}, "text": {"type": "text"}, "tags": {"type": "int", "list": True}},
        )
        refs = list_all(config)
        assert refs[1] == InputRef(
            "q", refs[1].location, labels=("0",), split="test", group="7", columns=(2.0, "bc", (2, 3))
        )
        assert refs[1].location.form == "<f8:3,4"
        assert refs[4].fault is not None
        assert refs[4].fault.reason == Reason.UNKNOWN_SPLIT

    def test_a_value_that_is_no_column_is_that_rows_fault(self, tmp_path):
        config = npz_config(
            tmp_path,
            {"data": ROWS, "labels": LABELS, "age": np.array([1, np.nan, 3, 4, 5])},
            columns={"age": {"type": "float"}},
        )
        faults = {ref.key: ref.fault.reason for ref in list_all(config) if ref.fault}
        assert faults == {"data.npz/1": Reason.BAD_ROW}

    def test_several_labels_are_rows_of_zeros_and_ones(self, tmp_path):
        (tmp_path / "names.txt").write_text("sun\nrain\nsnow\n")
        labels = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 2, 0], [1, 1, 1]])
        config = npz_config(
            tmp_path,
            {"data": ROWS, "labels": labels},
            labels={"kind": "multi", "names": str(tmp_path / "names.txt")},
        )
        refs = list_all(config)
        assert [ref.labels for ref in refs] == [("sun", "snow"), (), ("rain",), (), ("sun", "rain", "snow")]
        assert [ref.fault for ref in refs if ref.fault] == [
            (Reason.BAD_ROW, "label holds [0, 2, 0], which is not a row of 0 and 1")
        ]

    def test_targets(self, tmp_path):
        config = npz_config(tmp_path, {"data": ROWS, "labels": ROWS[:, :2]}, labels={"kind": "regression", "length": 2})
        assert np.array([ref.target for ref in list_all(config)], np.float32).tolist() == ROWS[:, :2].tolist()

    @pytest.mark.parametrize(
        ("labels", "kind", "told"),
        [
            (LABELS[:3], "single", "has 3 rows, but {path}: array 'data' has 5"),
            (np.array(3), "single", "is a single value, but {path}: array 'data' has 5"),
            (ROWS, "single",
             "has shape (5, 3), not one label per input; if rows hold 0 and 1, set labels.kind to multi"),
            (ROWS, "regression", "has shape (5, 3), but labels.length is 1"),
            (np.zeros((5, 1, 2)), "multi",
             "has shape (5, 1, 2); several labels per input are a row of 0 and 1 for each"),
            (np.array([["a"]] * 5), "multi",
             "is of type <U1; several labels per input are a row of 0 and 1 for each"),
            (np.zeros(5, "M8[s]"), "single", "is of type datetime64[s]; labels and columns are numbers or text"),
        ],
    )  # fmt: skip
    def test_labels_that_do_not_fit(self, tmp_path, labels, kind, told):
        config = npz_config(tmp_path, {"data": ROWS, "labels": labels}, labels={"kind": kind})
        path = tmp_path / "data.npz"
        assert refusal(config) == f"{path}: array 'labels' {told.format(path=path)}"

    def test_a_column_of_several_values_must_be_said_to_be_one(self, tmp_path):
        config = npz_config(
            tmp_path, {"data": ROWS, "labels": LABELS, "tags": ROWS}, columns={"tags": {"type": "float"}}
        )
        told = "array 'tags' has shape (5, 3); a column has one value per input, or `list: true`"
        assert refusal(config) == f"{tmp_path}/data.npz: {told}"

    def test_missing_arrays_are_named(self, tmp_path):
        config = npz_config(tmp_path, {"x_train": ROWS, "labels": LABELS})
        assert refusal(config) == (
            f"{tmp_path}/data.npz has no array 'data'; it has x_train, labels; "
            "if it is called otherwise, say so with source.fields: {features: its name}"
        )
        config = npz_config(tmp_path, {"data": ROWS}, source={"fields": {"label": "y"}})
        assert refusal(config) == (
            f"{tmp_path}/data.npz has no array 'y'; it has data; "
            "if it is called otherwise, say so with source.fields: {label: its name}"
        )

    def test_pickled_arrays_are_refused_only_if_they_are_needed(self, tmp_path):
        objects = np.array([{}, [], 1, 2, 3], dtype=object)
        config = npz_config(tmp_path, {"data": ROWS, "labels": LABELS, "notes": objects})
        assert len(list_all(config)) == 5
        config = npz_config(tmp_path, {"data": ROWS, "labels": objects})
        assert refusal(config) == (
            f"{tmp_path}/data.npz: array 'labels' holds Python objects, which are not loaded: "
            "a pickle can run any code; save numbers instead"
        )

    def test_every_file_is_checked(self, tmp_path):
        for number, rows in enumerate((ROWS, ROWS[:2], ROWS[:, :2])):
            np.savez(tmp_path / f"data_file_{number}.npz", data=rows, labels=LABELS[: len(rows)])
        config = make_config(tmp_path / "data_file_*.npz", tmp_path / "out")
        assert refusal(config) == (
            f"{tmp_path}/data_file_2.npz: array 'data' holds float32 of shape (2,), "
            f"but {tmp_path}/data_file_0.npz: array 'data' float32 of shape (3,); build a dataset of each"
        )
        (tmp_path / "data_file_2.npz").unlink()
        assert [ref.key for ref in list_all(config)][4:6] == ["data_file_0.npz/4", "data_file_1.npz/0"]

    def test_labels_path_is_for_lone_arrays(self, tmp_path):
        config = npz_config(tmp_path, {"data": ROWS, "labels": LABELS}, source={"labels_path": "y.npy"})
        assert refusal(config).startswith("source.labels_path is for .npy and IDX files; ")

    def test_a_cut_zip_file_is_refused(self, tmp_path):
        config = npz_config(tmp_path, {"data": ROWS, "labels": LABELS})
        path = tmp_path / "data.npz"
        path.write_bytes(path.read_bytes()[:-30])
        assert refusal(config) == f"{path} is damaged: File is not a zip file; get it anew"

    def test_an_encrypted_or_foreign_member_is_refused(self, tmp_path):
        path = tmp_path / "data.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.npy", b"PK is not NumPy")
        config = make_config(path, tmp_path / "out", labels=UNLABELLED)
        assert refusal(config).startswith(f"{path}: array 'data' is not an .npy array: the magic string is not correct")

    @pytest.mark.parametrize("place", ["elements", "checksum"])
    def test_damage_inside_of_compressed_elements_names_the_array(self, tmp_path, place):
        noise = np.random.default_rng(0).random((2000, 10))
        config = npz_config(tmp_path, {"data": noise}, compressed=True, labels=UNLABELLED)
        path = tmp_path / "data.npz"
        data = bytearray(path.read_bytes())
        directory = data.rindex(b"PK\x01\x02")
        data[directory // 2 if place == "elements" else directory + 16] ^= 0xFF
        path.write_bytes(data)
        check_sources(config)  # only reading everything would tell
        with pytest.raises(UsageError) as error:
            list_all(config, tmp_path / "spool")
        assert str(error.value).startswith(f"{path}: array 'data' is damaged: ")
        assert not list((tmp_path / "spool").glob("*.refs")), "half a spool must not look like a whole one"


@settings(deadline=None)
@given(
    array=arrays_of.arrays(
        st.sampled_from(["|u1", "<f4", ">i4"]), arrays_of.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
    ),
    order=st.sampled_from("CF"),
    compressed=st.booleans(),
    rows=st.integers(1, 6),
    data=st.data(),
)
def test_blocks_are_slices(tmp_path_factory, array, order, compressed, rows, data):
    folder = tmp_path_factory.mktemp("blocks")
    array = array.copy(order)
    first = data.draw(st.integers(0, len(array)))
    end = data.draw(st.integers(first, len(array)))
    npz_config(folder, {"data": array}, compressed=compressed)
    with (folder / "data.npz").open("rb") as stream:
        stored = Archive(str(folder / "data.npz"), stream).array("data")
    blocks = list(read_blocks(stored, first, end, rows=rows, scratch=str(folder)))
    assert [len(block) for block in blocks[:-1]] == [rows] * (len(blocks) - 1)
    np.testing.assert_array_equal(np.concatenate([array[:0], *blocks]), array[first:end])
    assert all(block.flags.c_contiguous for block in blocks)


# Runs in a fresh interpreter: lists one source into a spool, then says how many refs and how much memory at most.
LISTING = """
import resource, sys
from pipelines.config import BuildConfig
from pipelines.sources import check_sources, list_partition, partition_sources

path, folder = sys.argv[1:]
config = BuildConfig(source={"path": path}, output=folder + "/out")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
check_sources(config)
count = sum(1 for part in partition_sources(config) for _ in list_partition(part, config, folder + "/spool"))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_compressed_array_is_spooled_in_little_memory(tmp_path, order):
    rows, row_bytes = 30_000, 10_000  # 300 MB
    path = tmp_path / "zeros.npz"
    write_zeros(path, (rows, row_bytes), order)
    assert path.stat().st_size < 1_000_000
    command = [sys.executable, "-c", LISTING, str(path), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    count, kilobytes = map(int, result.stdout.split())
    assert count == rows
    assert (tmp_path / "spool" / "000000.bin").stat().st_size == rows * row_bytes
    assert kilobytes < 60_000, "listing must not hold the array"


def write_zeros(path: Path, shape: tuple[int, int], order: str) -> None:
    """An .npz file of zeros, written as NumPy would, but a piece at a time."""
    header = {"descr": "|u1", "fortran_order": order == "F", "shape": shape}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("labels.npy", "w") as member:
            np.lib.format.write_array(member, np.zeros(shape[0], np.int64))
        with archive.open("data.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(shape[0]):
                member.write(bytes(shape[1]))


# The articles' example: five files of feature rows with labels 0 and 1, here with fewer rows and features.


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    random = np.random.default_rng(5)
    for number in range(5):
        data = random.random((40, 7), np.float32) * 100 - 3
        np.savez(folder / f"data_file_{number}.npz", data=data, labels=random.integers(0, 2, 40, np.int32))
    return folder


@pytest.fixture(scope="module")
def dataset(files) -> tuple[Path, Manifest]:
    config = make_config(
        files / "data_file_*.npz",
        files / "dataset",
        name="rows",
        splits={"fractions": {"train": 0.8, "test": 0.2}},
        shards={"count": {"train": 2, "test": 1}},
    )
    return files / "dataset", run_build(config)


@pytest.fixture(scope="module")
def expected(files) -> dict[str, tuple[np.ndarray[Any, Any], int]]:
    found = {}
    for path in sorted(files.glob("*.npz")):
        with np.load(path) as arrays:
            for row, (data, label) in enumerate(zip(arrays["data"], arrays["labels"], strict=True)):
                found[f"{path.name}/{row}"] = (data, int(label))
    return found


def read_split(root: Path, split: SplitEntry) -> dict[str, dict[str, Any]]:
    """The examples of a split by key."""
    examples = {}
    for shard in split.shards:
        with (root / shard.path).open("rb") as stream:
            for _, record in read_records(stream):
                example: dict[str, Any] = decode_example(record)
                examples[example["key"][0].decode()] = example
    return examples


def test_every_value_of_a_feature_dataset_comes_back(dataset, expected):
    root, manifest = dataset
    assert (manifest.counts.written, manifest.labels) == (200, ("0", "1"))
    examples = {key: example for split in manifest.splits for key, example in read_split(root, split).items()}
    assert examples.keys() == expected.keys()
    for key, (data, label) in expected.items():
        assert np.array(examples[key]["features"], np.float32).tobytes() == data.tobytes()
        assert examples[key]["label"] == [label]


def test_a_feature_dataset_verifies(dataset):
    assert verify(dataset[0]) == []


def test_the_graph_scales_each_feature_by_the_training_split(dataset, expected):
    root, manifest = dataset
    keys = read_split(root, manifest.split("train"))
    train = np.stack([expected[key][0] for key in keys]).astype(np.float64)
    assert len(keys) < len(expected)
    batch = np.stack([data for data, _ in expected.values()])
    graph = tft.TFTransformOutput(str(root)).transform_features_layer()
    scaled = graph({"features": tf.constant(batch), "label_name": tf.constant(["1"] * len(batch))})
    np.testing.assert_allclose(scaled["features"], (batch - train.mean(0)) / train.std(0), rtol=1e-3, atol=1e-4)
    assert set(scaled["label"].numpy().tolist()) == {1}


def test_tfds_opens_a_feature_dataset(dataset, expected):
    builder = tfds.builder_from_directory(str(dataset[0]))
    assert builder.info.features["features"].shape == (7,)
    assert builder.info.supervised_keys == ("features", "label")
    seen = 0
    for example in tfds.as_numpy(builder.as_dataset(split="train+test")):
        data, label = expected[example["key"].decode()]
        np.testing.assert_array_equal(example["features"], data)
        assert example["label"] == label
        seen += 1
    assert seen == len(expected)


def test_people_see_rows_not_pictures(dataset, expected):
    root, _ = dataset
    report = (root / "report.html").read_text(encoding="utf-8")
    assert "<h2>First rows</h2>" in report
    assert "<img" not in report
    command = [sys.executable, "-m", "shards", "inspect", str(root)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "features" in shown
