"""NumPy's files: `.npy` with one array, `.npz` with several by name.

Headers are read by NumPy's own functions, and elements never through pickle. Rows that lie in one piece are read in
place, inside of a zip file too; the others are copied to the spool, a block at a time.
"""

import struct
import tokenize
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import file_stat, open_binary
from pipelines.sources.array_files import ArrayFiles
from pipelines.sources.array_rows import LABEL, ArrayTable, check_tables, list_rows, partition_table
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.files import source_files
from pipelines.sources.rows import USUAL_FIELDS
from pipelines.sources.stored_arrays import StoredArray, check_length, explain_damage
from shards.errors import UsageError

_DATA_NAMES = ("data", *USUAL_FIELDS["features"], *USUAL_FIELDS["image"])
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip member; the lengths are those of its name and its extras
_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}

# NumPy reads a header as a Python literal, and lets through what Python's parser says of others.
_BAD_HEADERS = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError)


def read_header(stream: BinaryIO, place: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, and type; the stream then stands at the first element."""
    try:
        version = npy_format.read_magic(stream)
        if version not in _HEADERS:  # (3, 0) is for records whose fields have unusual names
            raise ValueError(f"version {version[0]}.{version[1]} is not read")
        with warnings.catch_warnings(action="ignore"):  # of files that Python 2 wrote
            shape, by_column, dtype = _HEADERS[version](stream)
        if any(side < 0 for side in shape):
            raise ValueError(f"shape {shape} is negative")
    except _BAD_HEADERS as error:
        raise UsageError(f"{place} is not an .npy array: {str(error).splitlines()[0]}") from error
    if dtype.hasobject:
        raise UsageError(
            f"{place} holds Python objects, which are not loaded: a pickle can run any code; save numbers instead"
        )
    return shape, by_column and len(shape) > 1, dtype


def open_npy(path: str) -> StoredArray:
    """The array of an .npy file; refuses one that ends early."""
    with explain_damage(path), open_binary(path) as stream:
        shape, by_column, dtype = read_header(stream, path)
        array = StoredArray(path, "", dtype, shape, stream.tell(), by_column=by_column)
    check_length(array, file_stat(path).size - array.offset)
    return array


class Archive:
    """The arrays of an .npz file by name."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        """Reads the directory of the zip file."""
        self._path, self._stream, self._zip = path, stream, zipfile.ZipFile(stream)
        files = [info for info in self._zip.infolist() if info.filename.endswith(".npy")]
        self._members = {info.filename.removesuffix(".npy"): info for info in files}
        if len(self._members) < len(files):
            raise UsageError(f"{path} has two arrays of the same name")

    @property
    def names(self) -> list[str]:
        """What arrays there are."""
        return list(self._members)

    def array(self, name: str) -> StoredArray:
        """One of them."""
        info, place = self._members[name], f"{self._path}: array {name!r}"
        with explain_damage(place):
            with self._zip.open(info) as member:
                shape, by_column, dtype = read_header(member, place)  # type: ignore[arg-type]
                offset = member.tell()
            stored = info.compress_type == zipfile.ZIP_STORED
            array = StoredArray(
                self._path,
                name,
                dtype,
                shape,
                offset + self._data_offset(info) if stored else offset,
                coding="" if stored else "zip",
                by_column=by_column,
            )
        check_length(array, info.file_size - offset)
        return array

    def _data_offset(self, info: zipfile.ZipInfo) -> int:
        self._stream.seek(info.header_offset)
        _, name, extra = _LOCAL_HEADER.unpack(self._stream.read(_LOCAL_HEADER.size))
        return int(info.header_offset + _LOCAL_HEADER.size + name + extra)


def open_npz(path: str, source: SourceConfig, config: BuildConfig) -> ArrayTable:
    """The arrays of an .npz file that the build needs."""
    with explain_damage(path), open_binary(path) as stream:
        archive = Archive(path, stream)
        role = "image" if "image" in source.fields else "features"
        data = _name(archive, path, source, role, _DATA_NAMES)
        names = {role: _name(archive, path, source, role, USUAL_FIELDS.get(role, (role,))) for role in _needed(config)}
        for role in ("split", "group", "id"):
            if role in source.fields or role in archive.names:
                names[role] = _name(archive, path, source, role, (role,))
        return ArrayTable(archive.array(data), {role: archive.array(name) for role, name in names.items()})


def _needed(config: BuildConfig) -> list[str]:
    return [*([] if config.labels.kind == "none" else [LABEL]), *config.columns]


def _name(archive: Archive, path: str, source: SourceConfig, role: str, usual: tuple[str, ...]) -> str:
    """What an archive calls a role."""
    wanted = (source.fields[role],) if role in source.fields else usual
    for name in wanted:
        if name in archive.names:
            return name
    there = f"it has {', '.join(archive.names)}" if archive.names else "it has none"
    raise UsageError(
        f"{path} has no array {wanted[0]!r}; {there}; "
        f"if it is called otherwise, say so with source.fields: {{{role}: its name}}"
    )


def _npz_tables(source: SourceConfig, config: BuildConfig) -> Iterator[ArrayTable]:
    return (open_npz(file.path, source, config) for file in source_files(source))


def check_npz(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses files that are damaged, lack an array, or do not fit together."""
    if source.labels_path:
        raise UsageError("source.labels_path is for .npy and IDX files; in an .npz file labels are an array by name")
    check_tables(list(_npz_tables(source, config)), config)


def partition_npz(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """Ranges of rows of every file."""
    return [part for table in _npz_tables(source, config) for part in partition_table(table, source)]


def npz_rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per row."""
    return list_rows(open_npz(part.path, source, config), part, source, config, spool)


NPY = ArrayFiles(open_npy).kind
NPZ = Kind(check_npz, partition_npz, npz_rows)
