"""What `diff` holds of a dataset: hashes of the keys and records of its examples, and where each lies.

24 bytes per example: 64 bits of the sha256 of its key, as many of that of its record, and its offset in the shard. That
some two of n keys share a hash has a chance of n^2 / 2^65: one in 92,000 for two datasets of ten million examples each.
Such a pair may be told as one example that changed or moved. That a changed record passes for an unchanged one has a
chance of 1 in 2^64.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shards.errors import ShardsmithError
from shards.example import Values, decode_example
from shards.manifest import ShardEntry
from shards.records import DamagedRecord, read_records

Rows = npt.NDArray[np.int64]  # row numbers of a table
Hashes = npt.NDArray[np.uint64]
Column = Literal["key", "record", "place"]  # a place is a split and a key
_ROW = np.dtype([("key", np.uint64), ("record", np.uint64), ("offset", np.int64)])


@dataclass(frozen=True)
class PlacedShard:
    """A shard and the split that it belongs to."""

    split: str
    entry: ShardEntry


Track = Callable[[Sequence[PlacedShard]], Iterable[PlacedShard]]  # hands shards on, and sees how fast they are taken


class Table:
    """A row for each example in some shards of a dataset, in stored order."""

    def __init__(self, directory: Path, shards: Sequence[PlacedShard], *, track: Track = iter) -> None:
        """Reads the shards; raises ShardsmithError at the first record that is damaged or has no key."""
        self.directory, self.shards = directory, shards
        self._ends = np.cumsum([shard.entry.records for shard in shards], dtype=np.int64)
        self._rows = np.empty(sum(shard.entry.records for shard in shards), dtype=_ROW)
        for shard, end in zip(track(shards), self._ends.tolist(), strict=True):
            self._rows[end - shard.entry.records : end] = _read_rows(directory, shard.entry)

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self._rows)

    def hashes(self, column: Column, rows: Rows) -> Hashes:
        """The hashes of what some rows have in a column."""
        if column != "place":
            return np.asarray(self._rows[column][rows])
        splits = np.array([_hash(shard.split.encode()) for shard in self.shards], dtype=np.uint64)
        return np.asarray(self._rows["key"][rows] ^ splits[self.shard_numbers(rows)])

    def shard_numbers(self, rows: Rows) -> Rows:
        """Which of `shards` holds each of some rows."""
        return np.searchsorted(self._ends, rows, side="right")

    def split_of(self, row: int) -> str:
        """The split that a row is in."""
        return self.shards[int(np.searchsorted(self._ends, row, side="right"))].split

    def read(self, row: int) -> dict[str, Values]:
        """The whole example of a row, from the disk."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        shard, offset = self.shards[number].entry, int(self._rows["offset"][row])
        with _naming(self.directory, shard), (self.directory / shard.path).open("rb") as stream:
            stream.seek(offset)
            _, data = next(read_records(stream), (0, b""))
            if _hash(data) != self._rows["record"][row]:
                raise ValueError(f"byte {offset} is not what it was a moment ago: something writes to the dataset")
            return decode_example(data)


def key_of(example: Mapping[str, Values]) -> bytes:
    """The key of an example; raises ValueError if it has none."""
    match example.get("key"):
        case [bytes() as key]:
            return key
    raise ValueError("feature 'key' is not one bytes value")


def damaged(directory: Path, path: str, problem: object) -> ShardsmithError:
    """The error that names a file with its problem, and the command that tells more."""
    return ShardsmithError(f"{directory / path}: {problem}; `python -m shards verify {directory}` lists all damage")


def _read_rows(directory: Path, shard: ShardEntry) -> npt.NDArray[Any]:
    rows: list[tuple[int, int, int]] = []
    with _naming(directory, shard), (directory / shard.path).open("rb") as stream:
        for offset, record in read_records(stream):
            try:
                rows.append((_hash(key_of(decode_example(record))), _hash(record), offset))
            except ValueError as error:
                raise DamagedRecord(len(rows), offset, str(error)) from error
        if len(rows) != shard.records:
            raise ValueError(f"has {len(rows):,} records, the manifest says {shard.records:,}")
    return np.array(rows, dtype=_ROW)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


@contextmanager
def _naming(directory: Path, shard: ShardEntry) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise damaged(directory, shard.path, error.strerror) from error
    except (DamagedRecord, ValueError) as error:
        raise damaged(directory, shard.path, error) from error
