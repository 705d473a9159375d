"""Folders of image files: one folder per class, folders of splits, or a flat heap with labels in the paths."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from pipelines.config import SPLIT_NAMES, BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import (
    FileStat,
    find_files,
    glob_matcher,
    glob_root,
    is_folder,
    is_glob,
    subfolders,
    walk_files,
)
from pipelines.reasons import Reason
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.rows import label_problem, relative_key
from pipelines.values import Fault, Location
from shards.errors import UsageError

# In class folders every file is an input whatever its name, except these and hidden files: a picture that is refused is
# better than one that silently stays behind. Outside class folders, where other things lie about, only images count.
# fmt: off
SIDECAR_SUFFIXES = frozenset({
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".md", ".html", ".pdf", ".db", ".ini", ".log",
    ".parquet",
})
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".webp",
    ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ico", ".tga", ".ppm", ".pgm",
})
# fmt: on
_LOOSE = Fault(Reason.NO_LABEL, "the file lies in no class folder")
_HIDDEN = re.compile(r"(^|/)\.(?!\.?(/|$))")  # a name that starts with a dot, at any level; . and .. are no names
CLASS, LOOSE, FLAT = "class", "loose", "flat"  # the notes of our partitions


def root_of(source: SourceConfig) -> str:
    """The folder itself, or the one in which a glob looks."""
    return glob_root(source.path) if _is_filter(source) else source.path.rstrip("/") or "/"


def _is_filter(source: SourceConfig) -> bool:
    """Whether the path has wildcards; a folder may well be called like some."""
    return is_glob(source.path) and not is_folder(source.path)


def layout_of(source: SourceConfig, config: BuildConfig) -> str:
    """The layout asked for; `auto` sees split folders when every top folder is called like a split."""
    if source.layout != "auto":
        return source.layout
    if source.label_pattern or config.labels.kind == "none":
        return "flat"
    names = subfolders(root_of(source))
    return "split_class" if names and all(name.lower() in SPLIT_NAMES for name in names) else "class"


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses folders that give no labels, or labels that cannot be used."""
    if is_glob(source.path) and not find_files(source.path):
        raise UsageError(f"source.path {source.path} matches no file")
    if not is_folder(root_of(source)):
        raise UsageError(f"source.path {source.path} is not a folder; set source.kind to what it is")
    if config.labels.kind == "regression" or config.boxes or config.columns:
        what = "boxes" if config.boxes else "columns" if config.columns else "regression targets"
        raise UsageError(f"source.path {source.path} is a folder, which has no {what}; use a listing")
    layout = layout_of(source, config)
    if layout == "webdataset":
        raise UsageError(f"source.layout webdataset is for archives; source.path {source.path} is a folder")
    if layout == "flat":
        _check_flat(source, config)
    else:
        if source.label_pattern:
            raise UsageError(f"source.label_pattern is for layout flat, not for {layout}")
        _check_class_folders(source, config)


def _check_flat(source: SourceConfig, config: BuildConfig) -> None:
    groups = re.compile(source.label_pattern).groupindex
    if config.labels.kind != "none" and "label" not in groups:
        raise UsageError(
            "a flat folder needs source.label_pattern, a regular expression with a group called label, "
            "such as (?P<label>[a-z]+)_\\d+; or labels.kind: none"
        )


def _check_class_folders(source: SourceConfig, config: BuildConfig) -> None:
    if config.labels.kind == "none":
        return
    folders = [part for part in partition(source, config) if part.note == CLASS]
    if not folders:
        root = root_of(source)
        raise UsageError(
            f"source.path {source.path} has no class folders; expected {root}/<class>/<image>, or a listing; "
            "for a flat folder set source.label_pattern, or labels.kind: none"
        )
    for folder in folders:
        if problem := label_problem(unicodedata.normalize("NFC", folder.label)):
            raise UsageError(f"class folder {folder.path!r}: {problem}; rename it")
        if folder.split and not (folder.split.isidentifier() and config.splits.knows(folder.split)):
            known = ", ".join([*config.splits.fractions, *config.splits.given])
            raise UsageError(
                f"split folder {folder.split!r} is not one of {known} nor a usual name; "
                "rename it, or add it to splits.given"
            )


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """One piece per class folder, and the files that lie beside them."""
    root, layout = root_of(source), layout_of(source, config)
    if layout == "flat":
        return [_partition(root, root, FLAT)]
    if layout == "class":
        return [*_class_folders(root, root, split=""), _partition(root, root, LOOSE)]
    splits = [(name, f"{root.rstrip('/')}/{name}") for name in subfolders(root)]
    folders = [folder for split, path in splits for folder in _class_folders(root, path, split=split)]
    return [*folders, *(_partition(root, path, LOOSE, split=split) for split, path in [("", root), *splits])]


def _class_folders(root: str, path: str, *, split: str) -> list[Partition]:
    return [_partition(root, f"{path.rstrip('/')}/{name}", CLASS, split=split, label=name) for name in subfolders(path)]


def _partition(root: str, path: str, note: str, *, split: str = "", label: str = "") -> Partition:
    return Partition(0, "folder", path, root, split=split, label=label, note=note)


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per file."""
    matches = glob_matcher(source.path) if _is_filter(source) else None
    pattern = re.compile(source.label_pattern) if source.label_pattern else None
    for file in walk_files(part.path, deep=part.note != LOOSE):
        key = relative_key(file.path, part.root)
        if file.is_folder_problem or (is_input(key, loose=part.note == LOOSE) and (matches is None or matches(key))):
            yield _row(file, key, part, pattern)


def _row(file: FileStat, key: str, part: Partition, pattern: re.Pattern[str] | None) -> Row:
    location = Location(file.path, file.size, modified=file.modified)
    if file.problem:
        return Row(key, key, {}, location, Fault(Reason.UNREADABLE, file.problem))
    if part.note == LOOSE:
        return Row(key, key, {}, location, _LOOSE)
    values: dict[str, Any] = {}
    if pattern:
        found = pattern.search(key)
        if not found:
            return Row(key, key, {}, location, Fault(Reason.NO_LABEL, f"source.label_pattern does not match {key!r}"))
        values = found.groupdict()
    return Row(key, key, values, location)


def is_input(key: str, *, loose: bool) -> bool:
    """Whether a file counts as an input by its name."""
    name = key.rpartition("/")[2]
    suffix = "." + name.rpartition(".")[2].lower() if "." in name else ""
    if loose:
        return suffix in IMAGE_SUFFIXES
    return suffix not in SIDECAR_SUFFIXES and not _HIDDEN.search(key)


KIND = Kind(check, partition, rows)
