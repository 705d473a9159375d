"""Lists inputs as references.

Class folders, split/class folders, and CSV or JSONL listings. Metadata only, no image is opened. Keys are source-
relative paths with forward slashes in NFC, or the listing's `id`; never an absolute path. What is wrong with the
source as a whole is an error before work starts (`check_source`); what is wrong with one row becomes that row's
fault.
"""

import csv
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipelines.config import ColumnConfig, SourceConfig
from pipelines.reasons import Reason
from pipelines.values import Fault, ImageRef, Scalar
from shards.errors import UsageError

# In class folders every file is an input whatever its name, except these and hidden files: a picture that is refused is
# better than one that silently stays behind. Outside class folders, where other things lie about, only images count.
# fmt: off
SIDECAR_SUFFIXES = frozenset({
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".md", ".html", ".pdf", ".db", ".ini", ".log",
})
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".webp",
    ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ico", ".tga", ".ppm", ".pgm",
})
# fmt: on
SPLIT_NAMES = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing", "holdout"}
)
REQUIRED_COLUMNS = ("path", "label")
RESERVED_COLUMNS = frozenset({"image", "key", "label_name", "height", "width", "pixel", "pixel_square"})
OPTIONAL_COLUMNS = ("split", "group", "id")


_LARGEST_FLOAT = 3.4028234e38  # records hold 32-bit floats


class Partition(NamedTuple):
    """A piece of a source that one worker lists: a class folder, the loose files beside class folders, or a listing."""

    kind: Literal["folder", "loose", "csv", "jsonl"]
    root: str
    path: str
    split: str = ""
    label: str = ""


def source_kind(source: SourceConfig) -> Literal["folder", "csv", "jsonl"]:
    """The kind asked for, or what the path itself says."""
    if source.kind != "auto":
        return source.kind
    if os.path.isdir(source.path):
        return "folder"
    suffix = Path(source.path).suffix.lower()
    if suffix not in (".csv", ".jsonl"):
        raise UsageError(f"source.path {source.path}: neither a directory nor a .csv or .jsonl file; set source.kind")
    return "csv" if suffix == ".csv" else "jsonl"


def check_source(source: SourceConfig) -> None:
    """Refuses, before any work, a source that cannot be listed."""
    if "://" in source.path:
        raise UsageError(f"source.path {source.path}: remote paths are not supported yet; mount or copy the data")
    if not os.path.exists(source.path):
        raise UsageError(f"source.path {source.path} does not exist")
    kind = source_kind(source)
    if kind == "folder":
        if not os.path.isdir(source.path):
            raise UsageError(f"source.path {source.path} is not a directory; set source.kind to csv or jsonl")
        if source.columns:
            raise UsageError("source.columns needs a csv or jsonl listing; a folder has no extra columns")
        _check_folders(source)
    else:
        _check_listing(source, kind)


def _check_folders(source: SourceConfig) -> None:
    folders = [partition for partition in partition_source(source) if partition.kind == "folder"]
    if not folders:
        raise UsageError(
            f"source.path {source.path} has no class folders; expected {source.path}/<class>/<image>, or a listing"
        )
    for folder in folders:
        if problem := _label_problem(folder.label):
            raise UsageError(f"class folder {folder.path!r}: {problem}; rename it")
        if folder.split and not folder.split.isidentifier():
            raise UsageError(f"split folder {folder.split!r} must be letters, digits and underscores; rename it")


def _check_listing(source: SourceConfig, kind: str) -> None:
    if os.path.isdir(source.path):
        raise UsageError(f"source.path {source.path} is a directory, but source.kind is {kind}")
    reserved = set(REQUIRED_COLUMNS + OPTIONAL_COLUMNS) | {
        "image",
        "key",
        "label_name",
        "height",
        "width",
        "pixel",
        "pixel_square",
    }
    if clash := sorted(reserved & set(source.columns)):
        raise UsageError(f"source.columns: {clash[0]!r} is a name of our own; rename the column in the listing")
    first = next(_read_rows(source.path, kind), None)
    if first is None:
        raise UsageError(f"{source.path} lists no images")
    known = set(first.values)
    for column in (*REQUIRED_COLUMNS, *source.columns):
        if column not in known and not first.fault:
            raise UsageError(f"{source.path} has no column {column!r}; it has {', '.join(sorted(known))}")


def partition_source(source: SourceConfig) -> list[Partition]:
    """Cuts a source into pieces that workers list independently."""
    kind = source_kind(source)
    if kind != "folder":
        return [Partition(kind, str(Path(source.path).parent), source.path)]
    root = source.path
    if folder_layout(source) == "class":
        return [*_class_folders(root, root, split=""), Partition("loose", root, root)]
    splits = [(name, f"{root}/{name}") for name in _subdirectories(root)]
    folders = [folder for split, path in splits for folder in _class_folders(root, path, split=split)]
    return [*folders, *(Partition("loose", root, path, split=split) for split, path in [("", root), *splits])]


def _class_folders(root: str, path: str, *, split: str) -> list[Partition]:
    return [Partition("folder", root, f"{path}/{name}", split=split, label=name) for name in _subdirectories(path)]


def folder_layout(source: SourceConfig) -> Literal["class", "split_class"]:
    """The layout asked for; `auto` sees split folders when every top folder is called like a split."""
    if source.layout != "auto":
        return source.layout
    names = _subdirectories(source.path)
    return "split_class" if names and all(name.lower() in SPLIT_NAMES for name in names) else "class"


def _subdirectories(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def list_partition(partition: Partition, columns: Mapping[str, ColumnConfig]) -> Iterator[ImageRef]:
    """Yields the refs of one partition."""
    if partition.kind in ("folder", "loose"):
        return _list_files(partition)
    return _list_rows(partition, columns)


_LOOSE = Fault(Reason.NO_LABEL, "the file lies in no class folder")


def _list_files(partition: Partition) -> Iterator[ImageRef]:
    loose = partition.kind == "loose"
    label = unicodedata.normalize("NFC", partition.label)
    for entry in _walk(partition.path, loose=loose):
        key = make_key(entry.path[len(partition.root) :].lstrip(os.sep))
        size = _file_size(entry.path)
        yield ImageRef(key, label, entry.path, size, split=partition.split, fault=_LOOSE if loose else None)


def _walk(path: str, *, loose: bool) -> Iterator[os.DirEntry[str]]:
    """The input files in a directory and below; links to directories are not followed, so that loops cannot trap us."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from () if loose else _walk(entry.path, loose=False)
            elif _is_input(entry.name, loose=loose) and not entry.is_dir():
                yield entry


def _is_input(name: str, *, loose: bool) -> bool:
    suffix = os.path.splitext(name)[1].lower()
    if loose:
        return suffix in IMAGE_SUFFIXES
    return not name.startswith(".") and suffix not in SIDECAR_SUFFIXES


def make_key(path: str) -> str:
    """A path as a key: forward slashes, NFC, and undecodable bytes spelt out."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", text.replace(os.sep, "/"))


class _Row(NamedTuple):
    line: int
    values: dict[str, Any]
    fault: str = ""


def _read_rows(path: str, kind: str) -> Iterator[_Row]:
    """Streams a listing; a line that cannot be parsed is a row with a fault."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            yield from _csv_rows(stream) if kind == "csv" else _jsonl_rows(stream)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _csv_rows(stream: Iterable[str]) -> Iterator[_Row]:
    reader = csv.DictReader(stream)
    for values in reader:
        extra = values.pop(None, None)
        short = [name for name, value in values.items() if value is None]
        fault = "more cells than the header has columns" if extra else f"no cell for {short[0]}" if short else ""
        yield _Row(reader.line_num, values, fault)


def _jsonl_rows(stream: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                yield _Row(number, {}, f"not JSON: {error.msg}")
                continue
            yield _Row(number, values) if isinstance(values, dict) else _Row(number, {}, "not a JSON object")


def _list_rows(partition: Partition, columns: Mapping[str, ColumnConfig]) -> Iterator[ImageRef]:
    for row in _read_rows(partition.path, partition.kind):
        yield _row_ref(row, partition, columns)


def _row_ref(row: _Row, partition: Partition, columns: Mapping[str, ColumnConfig]) -> ImageRef:
    place = f"{os.path.basename(partition.path)} line {row.line}"
    fault = row.fault or _row_fault(row.values, columns)
    if fault:
        return ImageRef(place, "", partition.path, 0, fault=Fault(Reason.BAD_ROW, fault))
    text = {name: str(row.values.get(name) or "") for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)}
    location = os.path.normpath(os.path.join(partition.root, text["path"]))
    return ImageRef(
        key=unicodedata.normalize("NFC", text["id"]) or _listing_key(location, partition.root),
        label=unicodedata.normalize("NFC", str(row.values["label"])),
        location=location,
        size=_file_size(location),
        split=text["split"],
        group=text["group"],
        columns=tuple(_cast(row.values[name], column) for name, column in columns.items()),
    )


def _row_fault(values: Mapping[str, Any], columns: Mapping[str, ColumnConfig]) -> str:
    for name in REQUIRED_COLUMNS:
        if values.get(name) in (None, ""):
            return f"{name} is empty"
    if problem := _label_problem(str(values["label"])):
        return problem
    split = values.get("split") or ""
    if split and not str(split).isidentifier():
        return f"split {split!r} must be letters, digits and underscores"
    for name, column in columns.items():
        try:
            _cast(values.get(name), column)
        except (TypeError, ValueError):
            return f"column {name} holds {values.get(name)!r}, which is not {column.type}"
    return ""


def _label_problem(label: str) -> str:
    """Labels are lines of label.labels.txt and of the vocabulary, so they must be visible and on one line."""
    return "" if label.strip() and label.isprintable() else f"label {label!r} is blank or has unprintable characters"


def _cast(value: Any, column: ColumnConfig) -> Scalar:
    if column.type == "text":
        return "" if value is None else str(value)
    if column.type == "float":
        if not abs(float(value)) <= _LARGEST_FLOAT:  # nor is NaN
            raise ValueError(f"{value} is not a finite 32-bit float")
        return float(value)
    number = int(value)
    if isinstance(value, float) and value != number:
        raise ValueError(f"{value} is not an int")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value} does not fit in 64 bits")
    return number


def _listing_key(location: str, root: str) -> str:
    relative = os.path.relpath(location, root)
    # Outside the listing's folder the absolute path, without its root, is the only stable name there is.
    return make_key(os.path.abspath(location).lstrip("/") if relative.startswith("..") else relative)


def _file_size(location: str) -> int:
    try:
        return os.stat(location).st_size
    except OSError:
        return 0  # Reading it will say what is wrong, and the reject will name it.
