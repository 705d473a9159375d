"""By what a later run knows an input again: one row for each record of a shard.

An identity is everything that is known of an input before it is opened: its metadata, where it lies in its source, and
when it was last modified. Whoever finds the same identity again may take the record over unread. Times of modification
are true on one machine only, so these files stay beside the dataset and are no part of what the manifest lists.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.config import BuildConfig, SourceConfig
from pipelines.layout import BuildFolder
from pipelines.process import Made
from pipelines.storage import glob_root, is_glob, is_remote
from pipelines.values import InputRef

IDENTITY = "identity"
ACCOUNTS = ("format", "sides", "boxes_kept", "boxes_dropped", "truncated")  # of a Made
SEEN_SCHEMA = pa.schema(
    [
        (IDENTITY, pa.uint64()),
        ("format", pa.string()),
        ("sides", pa.list_(pa.int64())),
        ("boxes_kept", pa.int64()),
        ("boxes_dropped", pa.int64()),
        ("truncated", pa.bool_()),
    ]
)


def seen_row(identity: int, made: Made) -> tuple[Any, ...]:
    """The row of an input that became a record, with what the accounts want to know of it."""
    return identity, *(getattr(made, name) for name in ACCOUNTS)


class Identities:
    """Gives inputs their identities; looks at each file of many inputs once."""

    def __init__(self, config: BuildConfig) -> None:
        """Sources are those of the config."""
        self._config = config
        self._files: dict[str, tuple[str, int]] = {}

    def of(self, ref: InputRef) -> int:
        """64 bits: enough, because they are only compared inside a shard's range of keys."""
        location = ref.location
        if location.is_whole_file:
            place = describe_file(ref, self._config), location.modified
        elif is_spooled(ref, self._config):
            place = "", location.content  # wherever the copy lies
        else:
            if location.path not in self._files:
                self._files[location.path] = describe_file(ref, self._config), _modified(location.path)
            place = self._files[location.path][0] + f"@{location.offset}", self._files[location.path][1]
        return _digest((ref_digest(ref), location.coding, *place))


def _modified(path: str) -> int:
    return 0 if is_remote(path) or not os.path.exists(path) else os.stat(path).st_mtime_ns


def ref_digest(ref: InputRef) -> int:
    """A 64-bit digest of everything known of an input before opening it, except where and when."""
    labels = sorted(ref.labels)
    return _digest((ref.key, ref.location.size, ref.location.form, labels, *ref[3:8], ref.fault))


def _digest(known: tuple[Any, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(known).encode(), digest_size=8).digest(), "little")


def is_spooled(ref: InputRef, config: BuildConfig) -> bool:
    """Whether the input is a copy of ours, which goes with the build."""
    return ref.location.path.startswith(f"{BuildFolder(Path(config.output)).spool}/")


def describe_location(ref: InputRef, config: BuildConfig) -> str:
    """Where an input lies, relative to its source, so that the same inputs elsewhere give the same text."""
    if is_spooled(ref, config):
        return config.all_sources[ref.source].path.rpartition("/")[2]
    path = describe_file(ref, config)
    return path if ref.location.is_whole_file else f"{path}@{ref.location.offset}+{ref.location.size}"


def describe_file(ref: InputRef, config: BuildConfig) -> str:
    """The path of an input's file, below its source if it lies there."""
    path = _relative(ref.location.path, config.all_sources[ref.source])
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _relative(path: str, source: SourceConfig) -> str:
    root = source.root or (glob_root(source.path) if is_glob(source.path) else source.path)
    for folder in (root, root.rpartition("/")[0]):  # a listing or an archive is no folder: then its own is
        below = path.removeprefix(f"{folder}/") if is_remote(path) else os.path.relpath(path, folder or ".")
        if below not in (path, ".") and not below.startswith("../"):
            return below
    return path
