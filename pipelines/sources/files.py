"""Sources that are one file or many of a kind (archives, records): which files, and what their keys begin with."""

from collections.abc import Iterable

from pipelines.config import BuildConfig, SourceConfig
from pipelines.sources.base import Partition, Row
from pipelines.sources.rows import RowReader, relative_key
from pipelines.storage import FileStat, find_files, glob_root, is_folder, walk_files
from shards.errors import UsageError


def source_files(source: SourceConfig, suffixes: tuple[str, ...]) -> list[FileStat]:
    """The file, the files that match a glob, or those in a folder that end in one of the suffixes; by name."""
    if is_folder(source.path):
        found = sorted(file for file in walk_files(source.path) if file.path.lower().endswith(suffixes))
        if not found:
            raise UsageError(f"source.path {source.path} has no file that ends in {', '.join(suffixes)}")
        return found
    found = find_files(source.path)
    if not found:
        raise UsageError(f"source.path {source.path} matches no file")
    for file in found:
        if file.problem:
            raise UsageError(f"source.path {file.path}: {file.problem}")
    return found


def keys_root(source: SourceConfig, file: FileStat) -> str:
    """What keys are relative to: the folder in which several files were looked for, or the one file itself."""
    if is_folder(source.path):
        return source.path
    return file.path if file.path == source.path else glob_root(source.path)


def key_prefix(part: Partition, suffixes: tuple[str, ...]) -> str:
    """What stands before the keys of a file, so that those of two cannot meet: `train-00/`, or nothing for one file."""
    if part.root == part.path:
        return ""
    name = relative_key(part.path, part.root)
    longest = max((suffix for suffix in suffixes if name.lower().endswith(suffix)), key=len, default="")
    return f"{name[: len(name) - len(longest)]}/"


def file_name(part: Partition) -> str:
    """What a file is called in messages and in the key of what is wrong with it as a whole."""
    return (
        relative_key(part.path, part.root) if part.root != part.path else relative_key(part.path.rpartition("/")[2], "")
    )


def check_roles(
    rows: Iterable[Row], roles: Iterable[str], place: str, source: SourceConfig, config: BuildConfig
) -> None:
    """Refuses a source none of whose first rows has what the build needs."""
    values = [row.values for row in rows if not row.fault]
    reader = RowReader(source, config)
    for role in roles:
        if values and all(reader.find(each, role) is None for each in values):
            names = ", ".join(sorted({name for each in values for name in each})) or "none"
            raise UsageError(
                f"{place} has no field {source.fields.get(role, role)!r}; it has {names}; "
                f"if it is called otherwise, say so with source.fields: {{{role}: its name}}"
            )
