"""Arrays in files, by their headers: where the elements lie, and rows of them in blocks of bounded memory."""

import gzip
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pipelines.inputs.storage import is_remote, open_binary
from pipelines.pictures.forms import array_form
from shards.errors import UsageError

T = TypeVar("T")

# What is read at once: enough to make a block cheap, little enough to keep memory flat.
_BLOCK_BYTES, _BLOCK_ROWS = 4_000_000, 16_384
_BLOCK_BYTES_BY_COLUMN = 16_000_000  # there is a seek per column and block
_COPY_BYTES = 1_000_000
# What readers raise when bytes are not what they were: a flipped bit may also change what a file says of itself.
_DAMAGE = (
    zipfile.BadZipFile,  # no directory at the end of a zip file, or a member that does not fit to its checksum
    zlib.error,  # deflated bytes, in gzip and zip
    lzma.LZMAError,  # a member of a zip file may be packed in that way too
    EOFError,  # a compressed stream that ends early
    NotImplementedError,  # a member whose entry now names a compression that there is not
    RuntimeError,  # a member whose entry now says that it is encrypted
    ValueError,  # a place before the file's start that a directory names, and an array longer than its header says
)


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: `offset` is that of its first element, in the file or in what its `coding` hides."""

    path: str
    name: str  # in a zip file; "" where the file is the array
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    coding: Literal["", "gzip", "zip"] = ""
    by_column: bool = False  # Fortran's order, in which the elements of a row lie apart

    @property
    def place(self) -> str:
        """What messages call it."""
        return f"{self.path}: array {self.name!r}" if self.name else self.path

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    @property
    def form(self) -> str:
        """The form of one row."""
        return array_form(self.dtype, self.row_shape)

    @property
    def is_seekable(self) -> bool:
        """Whether reading can start at any row."""
        return not self.coding

    @property
    def is_in_place(self) -> bool:
        """Whether each row is read where it lies."""
        # A request per remote row would cost more than one copy of all.
        return self.is_seekable and not self.by_column and not is_remote(self.path)


def check_length(array: StoredArray, there: int) -> None:
    """Refuses an array that has more or fewer bytes of elements than its header says."""
    needed = array.dtype.itemsize * math.prod(array.shape)
    if there != needed:
        raise UsageError(f"{array.place} has {there} bytes of elements; its shape {array.shape} needs {needed}")


@contextmanager
def explain_damage(place: str) -> Iterator[None]:
    """Turns what damaged bytes raise into an error that names the place."""
    try:
        yield
    except UsageError:
        raise
    except _DAMAGE as error:
        raise UsageError(f"{place} is damaged: {error}; get it anew") from error
    except OSError as error:  # gzip.BadGzipFile among them
        raise UsageError(f"{place} cannot be read: {error.strerror or error}") from error


@contextmanager
def open_elements(array: StoredArray) -> Iterator[BinaryIO]:
    """A stream in which the first element is at `array.offset`."""
    with ExitStack() as stack:
        stream: Any = stack.enter_context(open_binary(array.path))
        if array.coding == "gzip":
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
        elif array.coding == "zip":
            archive = stack.enter_context(zipfile.ZipFile(stream))
            stream = stack.enter_context(archive.open(f"{array.name}.npy"))
        yield cast(BinaryIO, stream)


def block_rows(*arrays: StoredArray) -> int:
    """How many rows of these arrays, read in step, make a block."""
    widest = max(1, *(array.row_bytes for array in arrays))
    budget = _BLOCK_BYTES_BY_COLUMN if any(array.by_column for array in arrays) else _BLOCK_BYTES
    return max(1, min(_BLOCK_ROWS, budget // widest))


def read_blocks(
    array: StoredArray, first: int, end: int, *, rows: int, scratch: str | None = None
) -> Iterator[npt.NDArray[Any]]:
    """The rows from `first` up to `end`, `rows` at a time; `scratch` is a folder for a copy, should one be needed."""
    with explain_damage(array.place):
        if array.by_column:
            yield from _blocks_by_column(array, first, end, rows, scratch)
        else:
            yield from _blocks_by_row(array, first, end, rows)


def _blocks_by_row(array: StoredArray, first: int, end: int, rows: int) -> Iterator[npt.NDArray[Any]]:
    with open_elements(array) as stream:
        stream.seek(array.offset + first * array.row_bytes)
        for start in range(first, end, rows):
            count = min(rows, end - start)
            data = read_exactly(stream, count * array.row_bytes)
            # The end is also where checksums are compared.
            if array.coding and start + count == array.rows and stream.read(1):
                raise ValueError("it holds more elements than its header says")
            yield np.frombuffer(data, array.dtype).reshape(count, *array.row_shape)


def _blocks_by_column(
    array: StoredArray, first: int, end: int, rows: int, scratch: str | None
) -> Iterator[npt.NDArray[Any]]:
    columns, size = math.prod(array.row_shape), array.dtype.itemsize
    with _at_random(array, scratch) as (stream, offset):
        for start in range(first, end, rows):
            count = min(rows, end - start)
            block = np.empty((columns, count), array.dtype)
            for column in range(columns):
                stream.seek(offset + (column * array.rows + start) * size)
                block[column] = np.frombuffer(read_exactly(stream, count * size), array.dtype)
            yield np.ascontiguousarray(block.reshape(*array.row_shape[::-1], count).T)


@contextmanager
def _at_random(array: StoredArray, scratch: str | None) -> Iterator[tuple[BinaryIO, int]]:
    """The elements where seeking is cheap: in the file itself or in a copy; and the offset of the first."""
    with ExitStack() as stack:
        stream = stack.enter_context(open_elements(array))
        if array.is_seekable and not is_remote(array.path):
            yield stream, array.offset
            return
        copy = stack.enter_context(TemporaryFile(dir=scratch))
        stream.seek(array.offset)
        while data := stream.read(_COPY_BYTES):
            copy.write(data)
        yield cast(BinaryIO, copy), 0


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before is used: inflating needs Python's lock no more."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """The next `size` bytes; raises EOFError if there are fewer."""
    data = stream.read(size)
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise EOFError("it ends early")
        data += more
    return data
