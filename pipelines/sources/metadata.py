"""Hugging Face folders: images beside a `metadata.csv`, `.jsonl` or `.parquet` that names them in `file_name`.

The metadata files lie in the folder itself or in the split folders in it, and name files relative to where they lie.
They alone say what is an input: files that they do not mention are none.
"""

from typing import Any

from pipelines.config import SPLIT_NAMES, SourceConfig
from pipelines.inputs.storage import exists, subfolders
from pipelines.sources.base import Partition
from shards.errors import UsageError

NOTE = "metadata"  # of the partitions of such a folder
METADATA_KINDS = ("csv", "jsonl", "parquet")
FILE_NAME = "file_name"


def metadata_files(root: str, kind: str) -> list[Partition]:
    """A piece per metadata file of one kind; none if the folder is another kind of folder."""
    root = root.rstrip("/") or "/"
    splits = [(f"{root}/{split}", split) for split in subfolders(root) if split.lower() in SPLIT_NAMES]
    return [
        Partition(0, kind, path, root, folder, split=split, note=NOTE)
        for folder, split in [(root, ""), *splits]
        if exists(path := f"{folder}/metadata.{kind}")
    ]


def needed_metadata_files(source: SourceConfig) -> list[Partition]:
    """The same, for a source that is said to have some."""
    found = metadata_files(source.path, source.kind)
    if not found:
        raise UsageError(
            f"source.path {source.path} is a folder without a metadata.{source.kind}, but source.kind is {source.kind}"
        )
    return found


def with_folder_split(values: dict[str, Any], part: Partition) -> dict[str, Any]:
    """The values of a row; where one file speaks for all splits, `train/0001.jpg` tells the split too."""
    if part.note != NOTE or part.split or values.get("split"):
        return values
    folder, slash, _ = str(values.get(FILE_NAME)).partition("/")
    return values | {"split": folder} if slash and folder.lower() in SPLIT_NAMES else values
