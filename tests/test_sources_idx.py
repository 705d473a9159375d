"""IDX files as sources: pictures with their labels, plain or gzipped."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_config
from test_sources_arrays import contents, list_all, refusal

from pipelines.config import BuildConfig
from pipelines.pictures.images import process_array
from pipelines.pictures.process import read_input
from pipelines.sources import check_sources, partition_sources, resolve
from shards.errors import UsageError

PICTURES = np.arange(6 * 4 * 5).astype(np.uint8).reshape(6, 4, 5)
LABELS = np.array([9, 0, 3, 3, 1, 0], np.uint8)
CODES = {"|u1": 8, "|i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, CODES[array.dtype.str], array.ndim, *array.shape) + array.tobytes()


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> Path:
    data = idx_bytes(array)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def mnist(folder: Path, pictures_end: str = "", labels_end: str = "", /, **sections: Any) -> BuildConfig:
    """A pair of files whose names end like this, and the config that reads them."""
    path = write_idx(folder / f"train-images-idx3-ubyte{pictures_end}", PICTURES)
    write_idx(folder / f"train-labels-idx1-ubyte{labels_end}", LABELS)
    return make_config(path, folder / "out", **sections)


@pytest.mark.parametrize("pictures", ["", ".gz"])
@pytest.mark.parametrize("labels", ["", ".gz"])
def test_pictures_find_their_labels(tmp_path, pictures, labels):
    config = mnist(tmp_path, pictures, labels, source={"split": "train"})
    (part,) = partition_sources(config)
    assert part.spooled == (pictures == ".gz")
    refs = list_all(config, tmp_path / "spool")
    name = f"train-images-idx3-ubyte{pictures}"
    assert [(ref.key, ref.split, *ref.labels) for ref in refs] == [
        (f"{name}/{row}", "train", str(label)) for row, label in enumerate(LABELS)
    ]
    assert {ref.location.form for ref in refs} == {"|u1:4,5"}
    np.testing.assert_array_equal(contents(config, tmp_path / "spool"), PICTURES)


def test_pictures_become_the_pixels_that_were_stored(tmp_path):
    config = mnist(tmp_path, image={"encode": {"format": "png"}})
    location = list_all(config)[2].location
    picture = process_array(read_input(location, config.image), location.form, config.image)
    assert (picture.height, picture.width, picture.format) == (4, 5, "png")
    assert picture.channel_mean == pytest.approx([PICTURES[2].mean() / 255] * 3)


def test_labels_path_names_labels_that_lie_elsewhere(tmp_path):
    pictures = write_idx(tmp_path / "some-ubyte", PICTURES)
    labels = write_idx(tmp_path / "others-ubyte.gz", LABELS)
    config = make_config(pictures, tmp_path / "out", source={"labels_path": str(labels)})
    assert [int(ref.labels[0]) for ref in list_all(config)] == LABELS.tolist()


def test_integer_labels_have_names(tmp_path):
    (tmp_path / "names.txt").write_text("".join(f"class {number}\n" for number in range(10)))
    config = mnist(tmp_path, labels={"names": str(tmp_path / "names.txt")})
    assert [ref.labels[0] for ref in list_all(config)][:2] == ["class 9", "class 0"]


@pytest.mark.parametrize(
    ("array", "form"),
    [
        (np.zeros((2, 3, 4, 3), np.uint8), "|u1:3,4,3"),
        (np.ones((2, 3, 4), ">f4"), ">f4:3,4"),
        (np.ones((2, 7), ">i4"), ">i4:7"),
        (np.ones((2, 7), "|i1"), "|i1:7"),
        (np.ones((2, 7), ">f8"), ">f8:7"),
        (np.ones((2, 7), ">i2"), ">i2:7"),
    ],
)
def test_every_type_and_shape(tmp_path, array, form):
    path = write_idx(tmp_path / "x-ubyte", array)
    config = make_config(path, tmp_path / "out", labels={"kind": "none"})
    assert {ref.location.form for ref in list_all(config)} == {form}
    np.testing.assert_array_equal(contents(config), array)


@pytest.mark.parametrize(
    "name", ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz", "train-images.idx3-ubyte", "T-LABELS-IDX1-UBYTE"]
)
def test_names_tell_the_kind(tmp_path, name):
    (tmp_path / name).touch()
    config = make_config(tmp_path / name, tmp_path / "out")
    assert resolve(config.all_sources[0]).kind == "idx"


def test_several_files_find_their_labels_each(tmp_path):
    for name in ("a", "b"):
        write_idx(tmp_path / f"{name}-images.idx3-ubyte", PICTURES)
        write_idx(tmp_path / f"{name}-labels.idx1-ubyte", LABELS)
    refs = list_all(make_config(tmp_path / "*-images.idx3-ubyte", tmp_path / "out"))
    assert [ref.key for ref in refs][5:7] == ["a-images.idx3-ubyte/5", "b-images.idx3-ubyte/0"]
    assert [int(ref.labels[0]) for ref in refs] == [*LABELS, *LABELS]


def test_pictures_without_labels_are_refused(tmp_path):
    path = write_idx(tmp_path / "train-images-idx3-ubyte", PICTURES)
    told = f"{path} has no labels; set source.labels_path, or labels.kind: none"
    assert refusal(make_config(path, tmp_path / "out")) == told
    assert len(list_all(make_config(path, tmp_path / "out", labels={"kind": "none"}))) == 6


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\0\0\x08", "is damaged: it ends early; get it anew"),
        (b"\0\0\x08\x03\0\0", "is damaged: it ends early; get it anew"),
        (b"\0\0\x07\x01\0\0\0\0", r"is not an IDX file: it starts with b'\x00\x00\x07\x01'"),
        (b"\x89PNG\r\n", r"is not an IDX file: it starts with b'\x89PNG'"),
        (idx_bytes(PICTURES)[:-1], "has 119 bytes of elements; its shape (6, 4, 5) needs 120"),
        (idx_bytes(PICTURES) + b"x", "has 121 bytes of elements; its shape (6, 4, 5) needs 120"),
        (idx_bytes(LABELS), "has shape (6,); the first axis counts the inputs, others are missing"),
    ],
)
def test_files_that_are_not_what_they_say(tmp_path, data, told):
    path = tmp_path / "x-ubyte"
    path.write_bytes(data)
    assert refusal(make_config(path, tmp_path / "out", labels={"kind": "none"})) == f"{path} {told}"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (gzip.compress(idx_bytes(PICTURES))[:-12], "is damaged: Compressed file ended before the end-of-stream marker"),
        (gzip.compress(idx_bytes(PICTURES)[:-1]), "is damaged: it ends early"),
        (gzip.compress(idx_bytes(PICTURES) + b"x"), "is damaged: it holds more elements than its header says"),
        (gzip.compress(idx_bytes(PICTURES))[:-8] + bytes(8), "cannot be read: CRC check failed"),
    ],
)
def test_damaged_gzip_is_told_while_it_is_copied(tmp_path, data, told):
    path = tmp_path / "x-ubyte.gz"
    path.write_bytes(data)
    config = make_config(path, tmp_path / "out", labels={"kind": "none"})
    with pytest.raises(UsageError) as error:
        list_all(config, tmp_path / "spool")
    assert str(error.value).startswith(f"{path} {told}")


def test_labels_of_another_length_are_refused(tmp_path):
    config = mnist(tmp_path)
    labels = write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS[:5])
    with pytest.raises(UsageError) as error:
        check_sources(config)
    assert str(error.value) == f"{labels} has 5 rows, but {tmp_path}/train-images-idx3-ubyte has 6"
