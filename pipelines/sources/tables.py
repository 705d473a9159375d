"""Parquet tables: listings of paths, or tables with the pictures or features in them, which are spooled.

Rows are called by their `id`, by their path, or else by file and row number. Row groups are the pieces of work; of
them only the needed columns are read, a few rows at a time. Integer labels get the names that Hugging Face's
`ClassLabel` keeps in the file, unless labels.names has others.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import is_folder, is_remote, open_binary, walk_files
from pipelines.reasons import Reason
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.listings import check_names, matching_files
from pipelines.sources.metadata import metadata_files, with_folder_split
from pipelines.sources.payloads import ROLES, field_name, with_payload
from pipelines.sources.rows import USUAL_FIELDS, relative_key
from pipelines.values import Fault
from shards.errors import UsageError

# A piece of work: enough to make a spool file of its own worth while, little enough to keep all workers busy.
PIECE_BYTES = 64_000_000
_LISTING_ROWS, _PAYLOAD_ROWS = 1024, 16
_BUFFER_BYTES = 1 << 20  # without a buffer whole column chunks are read at once
_ALL_ROLES = (*ROLES, "label", "split", "group", "id", "boxes")
_SHARD_NAME = re.compile(r"(\w+)-\d{5}-of-\d{5}")  # how Hugging Face calls the files of a split


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses tables without rows or without the columns that the build needs."""
    rows_found = 0
    for part in _files(source):
        with open_table(part.path) as table:
            rows_found += table.metadata.num_rows
            check_names(table.schema_arrow.names, part.path, source, config, payloads=ROLES)
    if not rows_found:
        raise UsageError(f"source.path {source.path} lists no images")


def column_names(part: Partition) -> list[str]:
    """The columns of a table."""
    with open_table(part.path) as table:
        return list(table.schema_arrow.names)


def open_table(path: str) -> pq.ParquetFile:
    """A table whose pages are read one at a time."""
    try:
        place = open_binary(path) if is_remote(path) else path
        table = pq.ParquetFile(place, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {_first_line(error)}") from error
    names = table.schema_arrow.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path} has two columns called {twice[0]!r}; rename one of them")
    return table


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _files(source: SourceConfig) -> list[Partition]:
    """A piece per file; in a folder without metadata files every table is an input."""
    if not is_folder(source.path):
        return matching_files(source)
    root = source.path.rstrip("/") or "/"
    tables = sorted(file.path for file in walk_files(root) if file.path.endswith(".parquet"))
    found = metadata_files(root, "parquet") or [
        Partition(0, "parquet", path, root, os.path.dirname(path)) for path in tables
    ]
    if not found:
        raise UsageError(f"source.path {root} is a folder without Parquet files, but source.kind is parquet")
    return found


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """Pieces of one or several row groups."""
    return [piece for part in _files(source) for piece in _pieces(part, source, config)]


def _pieces(part: Partition, source: SourceConfig, config: BuildConfig) -> Iterator[Partition]:
    with open_table(part.path) as table:
        names = dict.fromkeys(table.schema_arrow.names, True)
        spooled = any(field_name(role, names, source) for role in ROLES if role != "path")
        for first, end in row_group_ranges(table.metadata):
            yield part._replace(split=part.split or _split_of(part.path, config), first=first, end=end, spooled=spooled)


def row_group_ranges(metadata: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Cuts a file's row groups into ranges (first, end) of some PIECE_BYTES."""
    first, size = 0, 0
    for number in range(metadata.num_row_groups):
        size += metadata.row_group(number).total_byte_size
        if size >= PIECE_BYTES or number == metadata.num_row_groups - 1:
            yield first, number + 1
            first, size = number + 1, 0


def _split_of(path: str, config: BuildConfig) -> str:
    """The split in a name such as `train-00000-of-00002.parquet`."""
    found = _SHARD_NAME.match(os.path.basename(path))
    return found[1] if found and config.splits.knows(found[1]) else ""


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per row, its payload in the spool if the table holds one."""
    with open_table(part.path) as table:
        columns = needed_columns(table.schema_arrow.names, source, config)
        label, names = class_names(table.schema_arrow, source, config)
        file, before = relative_key(part.path, part.root), _rows_before(table, part.first)
        for number, (values, fault) in enumerate(_values(table, part, columns), start=before):
            row = Row(f"{file} row {number}", f"{file}/{number:08d}", with_folder_split(values, part), fault=fault)
            row = _with_names(row, label, names) if names and not fault else row
            yield with_payload(row, source, spool) if part.spooled and not row.fault else row


def needed_columns(names: list[str], source: SourceConfig, config: BuildConfig) -> list[str]:
    """The columns that are worth reading; a field such as `objects.bbox` lies in the column `objects`."""
    wanted = {
        name
        for role in (*_ALL_ROLES, *config.columns)
        for name in (
            [source.fields[role].partition(".")[0]] if role in source.fields else USUAL_FIELDS.get(role, (role,))
        )
    }
    return [name for name in names if name in wanted]


def _rows_before(table: pq.ParquetFile, group: int) -> int:
    return sum(table.metadata.row_group(number).num_rows for number in range(group))


def _values(
    table: pq.ParquetFile, part: Partition, columns: list[str]
) -> Iterator[tuple[dict[str, Any], Fault | None]]:
    """Streams (values, what is wrong) of every row; a damaged row group costs the rows that it still held."""
    batch_rows = _PAYLOAD_ROWS if part.spooled else _LISTING_ROWS
    for group in range(part.first, part.end):
        left = table.metadata.row_group(group).num_rows
        try:
            for batch in table.iter_batches(batch_rows, row_groups=[group], columns=columns, use_threads=False):
                left -= batch.num_rows
                yield from (_row_values(batch, place) for place in range(batch.num_rows))
        except (OSError, pa.ArrowException) as error:
            damage = Fault(Reason.UNREADABLE, f"row group {group} is damaged: {_first_line(error)}")
            yield from (({}, damage) for _ in range(left))


def _row_values(batch: pa.RecordBatch, place: int) -> tuple[dict[str, Any], Fault | None]:
    values: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[place].as_py()
        except (ValueError, OverflowError, pa.ArrowException) as error:  # text that is not UTF-8, the year 100,000
            return {}, Fault(Reason.BAD_ROW, f"column {name} cannot be read: {_first_line(error)}")
    return values, None


def class_names(schema: pa.Schema, source: SourceConfig, config: BuildConfig) -> tuple[str, list[str]]:
    """The label's column, and the class names that Hugging Face's `ClassLabel` keeps in the file, if it does."""
    column = field_name("label", dict.fromkeys(schema.names, True), source)
    if config.labels.names or config.labels.kind == "regression":
        return column, []
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)  # of a list of labels
        names = feature["names"] if feature["_type"] == "ClassLabel" else []
    except (ValueError, LookupError, TypeError, AttributeError):  # not written by Hugging Face, or no ClassLabel
        return column, []
    return column, [str(name) for name in names]


def _with_names(row: Row, column: str, names: list[str]) -> Row:
    """The row with its label's name, or names, instead of numbers; -1 is how Hugging Face says that there is none."""
    value = row.values.get(column)
    ids = [number for number in (value if isinstance(value, list) else [value]) if number not in (None, -1)]
    if wrong := [number for number in ids if not (isinstance(number, int) and 0 <= number < len(names))]:
        return row._replace(
            fault=Fault(Reason.BAD_ROW, f"label {wrong[0]} is no id: {column} has {len(names)} names, from 0")
        )
    named = [names[number] for number in ids]
    return row._replace(
        values={**row.values, column: named if isinstance(value, list) else named[0] if named else None}
    )


KIND = Kind(check, partition, rows)
