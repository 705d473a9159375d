"""What can be wrong with a file, and how files are read to find out: in large blocks, hashed on the way."""

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shards.manifest import FileEntry, ShardEntry
from shards.records import FRAMING_BYTES, DamagedRecord, parse_index, read_records
from shards.rules import Rules

Rows = npt.NDArray[np.int64]  # (offset, size) of each record
Tick = Callable[[int], None]  # is told of the work that was done since the last call

# Long enough that a system call costs nothing, and short enough that what was read is still in the processor's cache
# when it is hashed. Read, not mapped: a disk error in a mapped file would kill the process instead of naming the file.
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and the file it is wrong in."""

    path: str
    message: str

    def __str__(self) -> str:
        """Reads like `train/train-00001.tfrecord: record 3 at byte 120: data fails its checksum`."""
        return f"{self.path}: {self.message}"


class HashedFile(FileIO):
    """A file that knows the length and the sha256 of what was read of it."""

    def __init__(self, path: Path, tick: Tick) -> None:
        """Opens a file; `tick` is told how many bytes each read brought."""
        super().__init__(path)
        self._tick, self._hash, self.bytes = tick, hashlib.sha256(), 0

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Reads the next bytes; overridden because `BufferedReader` reads by it alone."""
        count = super().readinto(buffer) or 0
        self._hash.update(buffer[:count])
        self.bytes += count
        self._tick(count)
        return count

    def buffered(self) -> BufferedReader:
        """A stream for small reads, which reads this file in large ones."""
        return BufferedReader(self, _BLOCK_BYTES)

    def read_to_end(self) -> None:
        """Reads what is left, only to hash it."""
        buffer = memoryview(bytearray(_BLOCK_BYTES))
        while self.readinto(buffer):
            pass

    def sha256(self) -> str:
        """The sha256 of what was read up to now."""
        return self._hash.hexdigest()


def check_file(
    root: Path, entry: FileEntry, *, fast: bool, what: str = "file", tick: Tick = lambda count: None
) -> Iterator[Problem]:
    """Compares a file with its entry in the manifest; a `fast` check reads nothing but its size."""
    try:
        with HashedFile(root / entry.path, tick) as file:
            size = os.fstat(file.fileno()).st_size
            if size == entry.bytes and not fast:
                file.read_to_end()
    except OSError as error:
        yield unreadable(entry.path, error, what=what)
    else:
        if size != entry.bytes:
            yield Problem(entry.path, f"has {size} bytes, the manifest says {entry.bytes}")
        elif not fast and file.sha256() != entry.sha256:
            yield Problem(entry.path, "sha256 differs from the manifest's")


def unreadable(path: str, error: OSError, *, what: str) -> Problem:
    """The problem that a file could not be read; `what` it is, such as shard."""
    if isinstance(error, FileNotFoundError):
        return Problem(path, f"the {what} is missing")
    return Problem(path, f"cannot be read: {error.strerror}")


@dataclass(frozen=True)
class Report:
    """What a look at one file showed: what is wrong, and how many of each label a shard has."""

    problems: tuple[Problem, ...]
    labels: Mapping[str, int] = field(default_factory=dict)


def check_shard(root: Path, shard: ShardEntry, rules: Rules, tick: Tick) -> Report:
    """Reads a shard and its index: every checksum, every promise of the manifest, every line of the index."""
    labels, sizes = Counter[str](), array("q")
    problems = [*_check_records(root, shard, rules, tick, labels, sizes)]
    problems += _check_index(root, shard, lambda listed: "" if problems else _compare_records(listed, sizes))
    return Report(tuple(problems), labels)


def check_shard_fast(root: Path, shard: ShardEntry) -> Report:
    """Checks the size of a shard, and its index against it, without reading the shard."""
    problems = [*check_file(root, shard, fast=True, what="shard")]
    problems += _check_index(root, shard, partial(_compare_entry, shard))
    return Report(tuple(problems))


def _check_records(
    root: Path, shard: ShardEntry, rules: Rules, tick: Tick, labels: Counter[str], sizes: "array[int]"
) -> Iterator[Problem]:
    """Reads a shard; adds to `labels` what its records are, and to `sizes` how long."""
    try:
        with HashedFile(root / shard.path, tick) as file:
            for offset, record in read_records(file.buffered()):
                try:
                    for label in rules.labels_of(record):
                        labels[label] += 1
                except ValueError as error:
                    yield Problem(shard.path, f"record {len(sizes)} at byte {offset}: {error}")
                sizes.append(len(record) + FRAMING_BYTES)
    except OSError as error:
        yield unreadable(shard.path, error, what="shard")
    except DamagedRecord as damage:
        yield Problem(shard.path, str(damage))
    else:
        if (len(sizes), file.bytes) != (shard.records, shard.bytes):
            said = f"{shard.records} in {shard.bytes}"
            yield Problem(shard.path, f"has {len(sizes)} records in {file.bytes} bytes, the manifest says {said}")
        elif file.sha256() != shard.sha256:
            yield Problem(
                shard.path, "sha256 differs from the manifest's, though every record is intact: replaced file?"
            )


def _check_index(root: Path, shard: ShardEntry, compare: Callable[[Rows], str]) -> Iterator[Problem]:
    """Checks the index in itself, with what `compare` says of its rows, and against its checksum."""
    try:
        content = (root / shard.index).read_bytes()
        listed = parse_index(content)
    except OSError as error:
        yield unreadable(shard.index, error, what="index")
    except ValueError as error:
        yield Problem(shard.index, f"not an index: {error}")
    else:
        problem = compare(listed)
        if problem or hashlib.sha256(content).hexdigest() != shard.index_sha256:
            yield Problem(shard.index, problem or "sha256 differs from the manifest's")


def _compare_entry(shard: ShardEntry, listed: Rows) -> str:
    found, said = (len(listed), int(listed[:, 1].sum())), (shard.records, shard.bytes)
    if found == said:
        return ""
    return "lists {} records in {} bytes, the manifest says {} in {}".format(*found, *said)


def _compare_records(listed: Rows, sizes: "array[int]") -> str:
    if len(listed) != len(sizes):
        return f"lists {len(listed)} records, the shard has {len(sizes)}"
    wrong = np.flatnonzero(listed[:, 1] != np.frombuffer(sizes, np.int64))
    if not len(wrong):
        return ""
    number = wrong[0]  # up to it all sizes are right, and an index has its records end to end: so is its offset
    offset, size = listed[number]
    said = "record {} is listed at byte {} with {} bytes, the shard has it at byte {} with {}"
    return said.format(number, offset, size, offset, sizes[number])
