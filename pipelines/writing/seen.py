"""By what a later run knows an input again, and what became of it: one row for each input of a shard.

An identity is everything that is known of an input before it is opened: its metadata, where it lies in its source, and
when it was last modified. Whoever finds the same identity again may take the record over unread. Times of modification
are true on one machine only, so these files stay beside the dataset and are no part of what the manifest lists.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.content import digest_of
from pipelines.inputs.storage import glob_root, is_glob, is_remote
from pipelines.pictures.process import Made, Outcome
from pipelines.planning.listing import source_of
from pipelines.planning.splits import is_given
from pipelines.reasons import DUPLICATES, Reason
from pipelines.values import InputRef
from pipelines.workspace.layout import BuildFolder

KEY, IDENTITY, DIGEST, REASON, SOURCE = "key", "identity", "digest", "reason", "source"
NOT_ITS_OWN = DUPLICATES | {Reason.DUPLICATE_KEY}  # faults that other inputs cause
ACCOUNTS = ("format", "sides", "boxes_kept", "boxes_dropped", "truncated", "content")  # of a Made
SEEN_SCHEMA = pa.schema(
    [
        (KEY, pa.binary()),  # names of files need not be text
        (IDENTITY, pa.uint64()),
        (DIGEST, pa.uint64()),
        (REASON, pa.string()),  # why it is no record; "": it is one
        (SOURCE, pa.string()),
        ("group", pa.binary()),
        ("unit", pa.binary()),
        ("look", pa.binary()),
        ("given", pa.bool_()),  # whether the source decided on its split
        ("format", pa.string()),
        ("sides", pa.list_(pa.int64())),
        ("boxes_kept", pa.int64()),
        ("boxes_dropped", pa.int64()),
        ("truncated", pa.bool_()),
        ("content", pa.uint64()),
    ]
)


def seen_row(ref: InputRef, outcome: Outcome, identity: int, config: BuildConfig) -> tuple[Any, ...]:
    """The row of an input, with what became of it and what the accounts want to know."""
    nothing = Made(b"", (), content=ref.content)
    made, reason = (outcome, "") if isinstance(outcome, Made) else (nothing, outcome.reason)
    names = (to_bytes(ref.group), to_bytes(ref.unit), ref.look, is_given(ref, config.splits))
    accounts = (getattr(made, name) for name in ACCOUNTS)
    return to_bytes(ref.key), identity, ref_digest(ref), str(reason), source_of(ref, config), *names, *accounts


def to_bytes(text: str) -> bytes:
    """A name as it is stored."""
    return text.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """A stored name as it was."""
    return name.decode("utf-8", "surrogateescape")


def read_seen(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a shard's inputs, in the order of the shard; raises OSError or ValueError if they cannot be read."""
    with pa.ipc.open_file(str(path), options=pa.ipc.IpcReadOptions(included_fields=_numbers(columns))) as reader:
        return reader.read_all()


def _numbers(columns: Sequence[str] | None) -> list[int] | None:
    return None if columns is None else [SEEN_SCHEMA.get_field_index(name) for name in columns]


class Identities:
    """Gives inputs their identities; looks at each file of many inputs once."""

    def __init__(self, config: BuildConfig) -> None:
        """Sources are those of the config."""
        self._config = config
        self._files: dict[str, tuple[str, int]] = {}

    def of(self, ref: InputRef) -> int:
        """64 bits: enough, because only inputs of one key are compared.

        That an input is a duplicate says something of others, and is not part of what it is.
        """
        if ref.is_carried and ref.before:
            return ref.before.identity
        if ref.fault and ref.fault.reason in NOT_ITS_OWN:
            ref = ref._replace(fault=None)
        location = ref.location
        if location.is_whole_file:
            place = describe_file(ref, self._config), location.modified
        elif is_spooled(ref, self._config):
            place = "", location.content  # wherever the copy lies
        else:
            if location.path not in self._files:
                self._files[location.path] = describe_file(ref, self._config), _modified(location.path)
            place = self._files[location.path][0] + f"@{location.offset}", self._files[location.path][1]
        return digest_of((ref_digest(ref), location.coding, *place))


def _modified(path: str) -> int:
    return 0 if is_remote(path) or not os.path.exists(path) else os.stat(path).st_mtime_ns


def ref_digest(ref: InputRef) -> int:
    """A 64-bit digest of everything known of an input before opening it, except where and when."""
    if ref.is_carried:
        return ref.location.content
    labels = sorted(ref.labels)
    return digest_of((ref.key, ref.location.size, ref.location.form, labels, *ref[3:8], ref.fault))


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
        below = path.removeprefix(f"{folder}/") if is_remote(path) else _below(path, folder or ".")
        if below not in (path, ".") and not below.startswith("../"):
            return below
    return path


def _below(path: str, folder: str) -> str:
    """What `os.path.relpath` gives, in a tenth of its time where the one path starts with the other."""
    below = path.removeprefix(f"{folder.rstrip('/')}/")
    plain = below != path and os.path.normpath(below) == below and not below.startswith(("..", "/"))
    return below if plain else os.path.relpath(path, folder)
