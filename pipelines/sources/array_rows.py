"""Rows of arrays: one array holds the inputs, others of the same length their labels and columns, read in step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.config import BuildConfig, LabelsConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import file_stat, glob_root, is_glob
from pipelines.pictures.forms import form_problem, pixel_count
from pipelines.reasons import Reason
from pipelines.sources.base import Partition, Row
from pipelines.sources.cells import shown
from pipelines.sources.rows import relative_key
from pipelines.sources.stored_arrays import StoredArray, block_rows, read_ahead, read_blocks
from pipelines.values import Fault, Location
from shards.errors import UsageError

# Enough rows to keep a worker busy for a second.
_PARTITION_ROWS = 100_000
LABEL = "label"
_VALUES = "biufSU"  # numbers and text, as NumPy calls them


@dataclass(frozen=True)
class ArrayTable:
    """Arrays of one length: the inputs, and what is known of each (label, split, group, id, the columns)."""

    data: StoredArray
    columns: Mapping[str, StoredArray]


def check_tables(tables: list[ArrayTable], config: BuildConfig) -> None:
    """Refuses arrays that cannot be inputs, do not fit together, or lack what the build needs."""
    if config.boxes:
        raise UsageError(f"{tables[0].data.path} has no boxes: arrays hold none; use a listing or a table")
    for table in tables:
        _check_data(table.data, config)
        for role, array in table.columns.items():
            _check_length(array, table.data)
            if problem := _column_problem(role, array, config):
                raise UsageError(f"{array.place} {problem}")
        _check_alike(table.data, tables[0].data)


def _check_data(data: StoredArray, config: BuildConfig) -> None:
    if len(data.shape) < 2:
        raise UsageError(f"{data.place} has shape {data.shape}; the first axis counts the inputs, others are missing")
    if problem := form_problem(data.dtype, data.row_shape):
        raise UsageError(f"{data.place}: {problem}")
    megapixels = 0.0 if len(data.row_shape) == 1 else pixel_count(data.form) / 1e6
    if megapixels > config.image.max_megapixels:
        limit = f"image.max_megapixels is {config.image.max_megapixels:g}"
        raise UsageError(f"{data.place} holds pictures of {megapixels:g} megapixels; {limit}")


def _check_length(array: StoredArray, data: StoredArray) -> None:
    if not array.shape or array.rows != data.rows:
        length = f"has {array.rows} rows" if array.shape else "is a single value"
        raise UsageError(f"{array.place} {length}, but {data.place} has {data.rows}")


def _column_problem(role: str, array: StoredArray, config: BuildConfig) -> str:
    """Why an array cannot be the label or the column that it should be; "" if it can."""
    if array.dtype.kind not in _VALUES:
        return f"is of type {array.dtype}; labels and columns are numbers or text"
    if role == LABEL:
        return _label_problem(array, config.labels)
    several = role in config.columns and not config.columns[role].is_scalar
    if len(array.shape) > (2 if several else 1):
        return f"has shape {array.shape}; a column has one value per input, or `list: true`"
    return ""


def _label_problem(array: StoredArray, labels: LabelsConfig) -> str:
    width = math.prod(array.row_shape)
    if labels.kind == "regression" and (len(array.shape) > 2 or width != labels.length):
        return f"has shape {array.shape}, but labels.length is {labels.length}"
    if labels.kind == "multi" and len(array.shape) == 2 and array.dtype.kind not in "biuf":
        return f"is of type {array.dtype}; several labels per input are a row of 0 and 1 for each"
    if labels.kind == "multi" and len(array.shape) > 2:
        return f"has shape {array.shape}; several labels per input are a row of 0 and 1 for each"
    if labels.kind == "single" and width != 1:
        return f"has shape {array.shape}, not one label per input; if rows hold 0 and 1, set labels.kind to multi"
    return ""


def _check_alike(data: StoredArray, first: StoredArray) -> None:
    if (data.dtype, data.row_shape) != (first.dtype, first.row_shape):
        ours, theirs = (f"{each.dtype} of shape {each.row_shape}" for each in (data, first))
        raise UsageError(f"{data.place} holds {ours}, but {first.place} {theirs}; build a dataset of each")


def partition_table(table: ArrayTable, source: SourceConfig, *, note: str = "") -> list[Partition]:
    """Ranges of rows; all of them as one where reading cannot start in the middle."""
    data = table.data
    root = glob_root(source.path) if is_glob(source.path) else data.path.rpartition("/")[0]
    whole = Partition(0, source.kind, data.path, root, note=note, end=data.rows, spooled=not data.is_in_place)
    if not all(array.is_seekable for array in (data, *table.columns.values())):
        return [whole]
    starts = range(0, data.rows, _PARTITION_ROWS)
    return [whole._replace(first=start, end=min(start + _PARTITION_ROWS, data.rows)) for start in starts]


def list_rows(
    table: ArrayTable, part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool
) -> Iterator[Row]:
    """A row per row: where its bytes lie, or now lie in the spool, and its values."""
    rows = block_rows(table.data, *table.columns.values())
    names = [source.fields.get(role, role) for role in table.columns]
    columns = [
        _column(read_blocks(array, part.first, part.end, rows=rows, scratch=spool.folder), role, config)
        for role, array in table.columns.items()
    ]
    file, places = relative_key(table.data.path, part.root), _places(table.data, part, rows, spool)
    for number, location, *values in zip(range(part.first, part.end), places, *columns, strict=True):
        key = f"{file}/{number}"
        fault = next((value for value in values if isinstance(value, Fault)), None)
        yield Row(key, key, dict(zip(names, values, strict=True)), location, fault)


def _places(data: StoredArray, part: Partition, rows: int, spool: Spool) -> Iterator[Location]:
    """Where each row lies: in the file, or in the spool, to which it is copied."""
    size, form = data.row_bytes, data.form
    if data.is_in_place or spool.is_dry:
        modified = file_stat(data.path).modified if data.is_in_place else 0
        for number in range(part.first, part.end):
            yield Location(data.path, size, data.offset + number * size, modified, form=form)
    else:
        for block in read_ahead(read_blocks(data, part.first, part.end, rows=rows, scratch=spool.folder)):
            view = block.reshape(-1).view(np.uint8).data
            for start in range(0, len(view), size):
                yield spool.add(view[start : start + size], form=form)


def _column(blocks: Iterator[npt.NDArray[Any]], role: str, config: BuildConfig) -> Iterator[Any]:
    """The values of an array, row by row, as Python's own; rows of 0 and 1 become the numbers of the ones."""
    for block in blocks:
        if role == LABEL and config.labels.kind == "multi" and block.ndim == 2:
            yield from map(_indicated, block)
        else:
            yield from (block.reshape(-1) if role == LABEL and config.labels.kind == "single" else block).tolist()


def _indicated(row: npt.NDArray[Any]) -> list[int] | Fault:
    if ((row == 0) | (row == 1)).all():
        numbers: list[int] = np.flatnonzero(row).tolist()
        return numbers
    return Fault(Reason.BAD_ROW, f"label holds {shown(row.tolist())}, which is not a row of 0 and 1")
