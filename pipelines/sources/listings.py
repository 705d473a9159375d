"""Listings: CSV, TSV and JSON lines whose rows name image files, compressed with gzip or not.

The first line of CSV and TSV names the columns. A row that cannot be parsed is a fault under the name of its line; a
file that cannot be read at all, or lacks a column, is refused before work starts.
"""

import csv
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import TextIOBase
from itertools import islice
from typing import Any, NamedTuple

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import glob_root, is_folder, open_text
from pipelines.reasons import Reason
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.files import source_files
from pipelines.sources.metadata import needed_metadata_files, with_folder_split
from pipelines.sources.payloads import is_text
from pipelines.sources.rows import RowReader
from pipelines.values import Fault
from shards.errors import UsageError

_CHECKED_ROWS = 100  # JSON objects may leave fields out, so the first few together tell what there is
_LONGEST_LINE = 1 << 24


class Line(NamedTuple):
    """A row of a listing: the number of its last line, its values, and what is wrong with it."""

    number: int
    values: dict[str, Any]
    problem: str = ""


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses listings without rows or without the columns that the build needs."""
    found = 0
    for part in partition(source, config):
        if names := column_names(part):
            check_names(names, part.path, source, config)
            found += 1
    if not found:
        raise UsageError(f"source.path {source.path} lists no images")


def column_names(part: Partition) -> list[str]:
    """The columns that the first rows have; none if there are no rows."""
    first = list(islice(_parse(part), _CHECKED_ROWS))
    names = dict.fromkeys(name for line in first for name in line.values)
    if first and not names:
        problem = f"line {first[0].number} is {first[0].problem}"
        raise UsageError(f"{part.path}: none of its first {len(first)} rows can be read; {problem}")
    return list(names)


def check_names(
    names: Iterable[str], path: str, source: SourceConfig, config: BuildConfig, *, payloads: tuple[str, ...] = ("path",)
) -> None:
    """Refuses a file without a column that every row must have; one of the `payloads` is enough."""
    reader, present = RowReader(source, config), list(names)
    for roles in (payloads, *((role,) for role in needed(config, "path")[1:])):
        if not any(reader.knows(present, role) for role in roles):
            wanted = " or ".join(repr(source.fields.get(role, role)) for role in roles)
            raise UsageError(
                f"{path} has no column {wanted}; it has {', '.join(map(_visible, present))}; "
                f"if it is called otherwise, say so with source.fields: {{{roles[0]}: its name}}"
            )


def needed(config: BuildConfig, payload: str) -> list[str]:
    """The roles and columns that every row must have."""
    label = [] if config.labels.kind == "none" else ["label"]
    return [payload, *label, *(["boxes"] if config.boxes else []), *config.columns]


def _visible(name: str) -> str:
    return name if name.isprintable() and name == name.strip() != "" else repr(name)


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """One piece per listing."""
    return needed_metadata_files(source) if is_folder(source.path) else matching_files(source)


def matching_files(source: SourceConfig) -> list[Partition]:
    """A piece per file that the path names or matches."""
    found, path = source_files(source), source.path
    root = _folder_of(path) if found[0].path == path else glob_root(path)
    return [Partition(0, source.kind, file.path, root, _folder_of(file.path)) for file in found]


def _folder_of(path: str) -> str:
    return os.path.dirname(path) or "."


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per row; one that cannot be parsed has a fault."""
    name = os.path.basename(part.path)
    for line in _parse(part):
        fault = Fault(Reason.BAD_ROW, line.problem) if line.problem else None
        yield Row(f"{name} line {line.number}", "", with_folder_split(line.values, part), fault=fault)


def _parse(part: Partition) -> Iterator[Line]:
    """Streams the rows of a listing."""
    try:
        with open_text(part.path, errors="surrogateescape") as stream:
            lines = _bounded_lines(stream, part.path)
            yield from _jsonl_rows(lines) if part.kind == "jsonl" else _csv_rows(lines, part)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{part.path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _bounded_lines(stream: TextIOBase, path: str) -> Iterator[str]:
    """Lines; a file without line ends must not end up in memory."""
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise UsageError(f"{path} line {number} is longer than {_LONGEST_LINE:,} characters; is it a listing?")
        yield line


def _csv_rows(lines: Iterator[str], part: Partition) -> Iterator[Line]:
    # Strict, because a quote that nobody closes would else swallow the rows behind it without a word.
    reader = csv.reader(lines, delimiter="\t" if part.kind == "tsv" else ",", strict=True)
    header: list[str] | None = None
    for cells, problem in _csv_cells(reader):
        if header is None:
            header = _checked_header(cells, problem, part.path)
        elif problem or len(cells) != len(header):
            missing = f"no cell for {header[len(cells)]}" if len(cells) < len(header) else ""
            excess = missing or "more cells than the header has columns"
            yield Line(reader.line_num, dict.fromkeys(header), problem or excess)
        else:
            yield Line(reader.line_num, dict(zip(header, cells, strict=True)))


def _csv_cells(reader: Any) -> Iterator[tuple[list[str], str]]:
    """Streams (cells, what is wrong) of the rows that are not blank."""
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            swallowed = f"; it swallowed the lines from {first} on" if reader.line_num > first else ""
            yield [], f"not well-formed: {error}{swallowed}"
            continue
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield cells, "" if all(map(is_text, cells)) else "not UTF-8 text"


def _checked_header(cells: list[str], problem: str, path: str) -> list[str]:
    if problem:
        raise UsageError(f"{path}: its first line, which must name the columns, is {problem}")
    if twice := [name for name, count in Counter(cells).items() if count > 1 and name]:
        raise UsageError(f"{path} has two columns called {twice[0]!r}; rename one of them")
    return cells


def _jsonl_rows(lines: Iterator[str]) -> Iterator[Line]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _json_line(number, line)


def _json_line(number: int, line: str) -> Line:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        return Line(number, {}, f"not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        return Line(number, {}, f"not read: {error}")
    if not isinstance(values, dict):
        return Line(number, {}, "not a JSON object")
    # Half of a surrogate pair can come as a byte that is not UTF-8 or as an escape.
    text = json.dumps(values, ensure_ascii=False) if "\\u" in line else line
    return Line(number, values, "" if is_text(text) else "not UTF-8 text")


KIND = Kind(check, partition, rows)
