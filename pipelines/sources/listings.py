"""Listings: CSV, TSV and JSON lines whose rows name image files; Hugging Face's metadata files among them."""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from pipelines.config import BuildConfig, SourceConfig
from pipelines.reasons import Reason
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.rows import RowReader
from pipelines.spool import Spool
from pipelines.storage import find_files, is_folder, open_text
from pipelines.values import Fault
from shards.errors import UsageError

NO_FAULT = ""


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses listings without rows or without the columns that the build needs."""
    for part in partition(source, config):
        check_columns(next(_parse(part), None), part.path, source, config)


def check_columns(
    first: tuple[int, dict[str, Any], str] | None, path: str, source: SourceConfig, config: BuildConfig
) -> None:
    """Refuses a first row that lacks what every row must have."""
    if first is None:
        raise UsageError(f"{path} lists no images")
    _, values, fault = first
    reader = RowReader(source, config)
    for role in needed(config, "path"):
        if not fault and not reader.knows(values, role):
            name = source.fields.get(role, role)
            raise UsageError(
                f"{path} has no column {name!r}; it has {', '.join(sorted(values))}; "
                f"if it is called otherwise, say so with source.fields: {{{role}: its name}}"
            )


def needed(config: BuildConfig, payload: str) -> list[str]:
    """The roles and columns that every row must have."""
    label = [] if config.labels.kind == "none" else ["label"]
    return [payload, *label, *(["boxes"] if config.boxes else []), *config.columns]


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """One piece per listing."""
    kind = source.kind
    found = find_files(source.path)
    if not found:
        raise UsageError(f"source.path {source.path} matches no file")
    for file in found:
        if file.problem:
            folder = f"is a directory, but source.kind is {kind}" if is_folder(file.path) else file.problem
            raise UsageError(f"source.path {file.path} {folder}")
    return [Partition(0, kind, file.path, os.path.dirname(file.path) or ".") for file in found]


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per row; one that cannot be parsed has a fault."""
    name = os.path.basename(part.path)
    for line, values, fault in _parse(part):
        yield Row(f"{name} line {line}", "", values, fault=Fault(Reason.BAD_ROW, fault) if fault else None)


def _parse(part: Partition) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Streams (line, values, what is wrong)."""
    try:
        with open_text(part.path) as stream:
            yield from _jsonl_rows(stream) if part.kind == "jsonl" else _csv_rows(stream, part.kind)
    except UnicodeDecodeError as error:
        raise UsageError(f"{part.path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _csv_rows(stream: Iterable[str], kind: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    reader = csv.DictReader(stream, delimiter="\t" if kind == "tsv" else ",")
    for values in reader:
        extra = values.pop(None, None)
        short = [name for name, value in values.items() if value is None]
        fault = "more cells than the header has columns" if extra else f"no cell for {short[0]}" if short else NO_FAULT
        yield reader.line_num, values, fault


def _jsonl_rows(stream: Iterable[str]) -> Iterator[tuple[int, dict[str, Any], str]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                yield number, {}, f"not JSON: {error.msg}"
                continue
            yield (number, values, NO_FAULT) if isinstance(values, dict) else (number, {}, "not a JSON object")


KIND = Kind(check, partition, rows)
