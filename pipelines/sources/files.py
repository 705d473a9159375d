"""Sources that are one file or many of a kind: which files, and what their keys begin with."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.storage import FileStat, find_files, glob_root, is_folder, walk_files
from pipelines.reasons import Reason
from pipelines.sources.base import Partition
from pipelines.sources.rows import RowReader, relative_key
from pipelines.values import Fault
from shards.errors import UsageError

# Whether files are spooled is decided before they are opened, from the first of them and from their names.
NOT_SPOOLED = Fault(
    Reason.UNREADABLE, "it is compressed, but neither its name nor the source's first file says so; add .gz to its name"
)


def source_files(source: SourceConfig, names: re.Pattern[str] | None = None) -> list[FileStat]:
    """The file, the files that match a glob, or those in a folder that `names` finds; in the order of their names."""
    if names and is_folder(source.path):
        found = sorted(file for file in walk_files(source.path) if names.search(file.path))
    else:
        found = find_files(source.path)
    if not found:
        what = f"has no {source.kind} file" if is_folder(source.path) else "matches no file"
        raise UsageError(f"source.path {source.path} {what}")
    for file in found:
        if file.problem:
            raise UsageError(f"source.path {file.path} cannot be read: {file.problem}")
    return found


def keys_root(source: SourceConfig, file: FileStat) -> str:
    """What keys are relative to: the folder in which several files were looked for, or the one file itself."""
    if is_folder(source.path):
        return source.path
    return file.path if file.path == source.path else glob_root(source.path)


def key_prefix(part: Partition, names: re.Pattern[str]) -> str:
    """What stands before the keys of a file, so that those of two cannot meet: `train-00/`, or nothing for one file."""
    return "" if part.root == part.path else f"{names.sub('', file_name(part))}/"


def file_name(part: Partition) -> str:
    """What a file is called in messages, and in the key of what is wrong with it as a whole."""
    folder = part.root if part.root != part.path else part.path.rpartition("/")[0]
    return relative_key(part.path, folder)


def check_roles(
    rows: Iterable[Mapping[str, Any]], roles: Iterable[str], path: str, source: SourceConfig, config: BuildConfig
) -> None:
    """Refuses a source none of whose first rows has what the build needs."""
    reader, missing, names = RowReader(source, config), list(roles), set[str]()
    for values in rows:
        missing = [role for role in missing if reader.find(values, role) is None]
        names.update(values)
        if not missing:
            return
    if missing and names:
        raise UsageError(
            f"source.path {path} has no field {source.fields.get(missing[0], missing[0])!r}; "
            f"it has {', '.join(sorted(names))}; "
            f"if it is called otherwise, say so with source.fields: {{{missing[0]}: its name}}"
        )
