"""IDX, the format of MNIST and its kin: a file of pictures and a file of labels, either of them perhaps gzipped."""

import gzip
import re
import struct
from typing import BinaryIO, Literal, cast

import numpy as np

from pipelines.inputs.storage import exists, file_stat, open_binary
from pipelines.sources.array_files import ArrayFiles
from pipelines.sources.stored_arrays import StoredArray, check_length, explain_damage, read_exactly
from shards.errors import UsageError

# NumPy's types by the third byte of the file.
_TYPES = {0x08: "|u1", 0x09: "|i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_PICTURES = re.compile(r"images([-.])idx\d")


def open_idx(path: str) -> StoredArray:
    """The array of an IDX file; refuses one that is cut, as far as its size tells."""
    with explain_damage(path), open_binary(path) as stream:
        coding: Literal["", "gzip"] = "gzip" if stream.read(2) == _GZIP else ""
        stream.seek(0)
        plain = cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if coding else stream
        dtype, shape = _read_header(plain, path)
        array = StoredArray(path, "", dtype, shape, plain.tell(), coding)
    if not coding:
        check_length(array, file_stat(path).size - array.offset)
    return array


def _read_header(stream: BinaryIO, path: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    start = read_exactly(stream, 4)
    if start[:2] != b"\0\0" or start[2] not in _TYPES:
        raise UsageError(f"{path} is not an IDX file: it starts with {start!r}")
    axes = start[3]
    return np.dtype(_TYPES[start[2]]), struct.unpack(f">{axes}I", read_exactly(stream, 4 * axes))


def usual_labels(path: str) -> str:
    """`train-labels-idx1-ubyte` for `train-images-idx3-ubyte`, gzipped or not; "" if there is no such file."""
    folder, slash, name = path.rpartition("/")
    labels = _PICTURES.sub(r"labels\1idx1", name).removesuffix(".gz")
    candidates = [f"{folder}{slash}{each}" for each in (labels, f"{labels}.gz") if each != name]
    return next((each for each in candidates if exists(each)), "") if _PICTURES.search(name) else ""


KIND = ArrayFiles(open_idx, usual_labels).kind
