"""Finds what is in two splits at once: copies of an input, and members of a group (`near_leaks`: what looks alike).

Every record has a mark of 64 bits for what it may share with others. The marks of one split after the other are sorted
and compared, 8 bytes for each record and in several passes if there are very many; only records whose mark is found in
two splits are looked at more closely. Copies count if the stored pictures or rows are equal too, groups if their names
are: a mark alone proves nothing. An example leaks at most once, from the first that it shares with an earlier split, so
that the list is never longer than the dataset.
"""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from pipelines.values import PlannedShard
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.seen import KEY, REASON, read_seen, to_text
from shards.errors import ShardsmithError
from shards.example import decode_example
from shards.records import DamagedRecord, read_index, read_records

MARKS_AT_ONCE, SHARED_AT_ONCE = 20_000_000, 100_000
Marks = npt.NDArray[np.uint64]
_NO_MARK = np.uint64(0)


@dataclass(frozen=True)
class Leak:
    """Two examples in two splits: copies of each other, or of one group; `given`: the source decided on a split."""

    kind: str
    keys: tuple[str, str]
    splits: tuple[str, str]
    shards: tuple[str, str]
    records: tuple[int, int]  # their numbers in the shards
    distance: int | None = None  # of copies: in how many bits of 256 they look different
    group: str = ""
    given: bool = False

    def __str__(self) -> str:
        """What a person wants to know."""
        one, other = (f"{key} ({split})" for key, split in zip(self.keys, self.splits, strict=True))
        if self.kind == "group":
            return f"{one} and {other} belong to group {self.group}"
        if self.kind == "near":
            return f"{one} and {other} look alike: {self.distance} of 256 bits differ"
        return f"{one} and {other} are copies of each other"


class Row(NamedTuple):
    """A record that shares its mark; sorted, rows stand in the order of the splits and keys."""

    split: int
    key: str
    shard: str
    record: int
    given: bool
    group: str


@dataclass(frozen=True)
class Places:
    """The shards of a dataset: what is known of their inputs lies in `folder`, the shards in it or in `older`.

    `splits` have an order, in which the later leak from the earlier.
    """

    folder: BuildFolder
    splits: Sequence[str]
    shards: Sequence[PlannedShard]
    older: Path | None = None

    def read(self, shard: PlannedShard, *columns: str) -> pa.Table:
        """What is known of the records of a shard, in their order."""
        seen = read_seen(self.folder.seen(shard), (REASON, *columns))
        return seen.filter(pa.compute.equal(seen[REASON], ""))

    def any_given(self) -> bool:
        """Whether the source decided on a split."""
        return any(pa.compute.any(self.read(shard, "given")["given"]).as_py() for shard in self.shards)

    def payloads(self, shard: PlannedShard, records: Sequence[int]) -> Iterator[bytes]:
        """Digests of what some records hold besides names and labels: the picture, or the features."""
        roots = [self.folder, *([BuildFolder(self.older)] if self.older else [])]
        folder = next(each for each in roots if each.shard(shard).exists())
        try:
            begins = read_index(folder.index(shard))[:, 0].tolist()
            with folder.shard(shard).open("rb") as stream:
                for record in records:
                    stream.seek(begins[record])
                    yield _digest_payload(next(read_records(stream))[1])
        except (OSError, ValueError, IndexError, StopIteration, DamagedRecord) as error:
            raise ShardsmithError(
                f"{folder.shard(shard)} cannot be read: {error}; mend it with `python -m pipelines repair`"
            ) from error


def _digest_payload(record: bytes) -> bytes:
    example = decode_example(record)
    images = [value for value in example.get("image", []) if isinstance(value, bytes)]
    return hashlib.sha256(images[0] if images else repr(example.get("features")).encode()).digest()


def content_marks(table: pa.Table) -> Marks:
    """The digests of the inputs' bytes."""
    return np.asarray(table["content"].to_numpy(), np.uint64)


def group_marks(table: pa.Table) -> Marks:
    """Hashes of the names of groups; 0 where there is none."""
    coded = table["group"].combine_chunks().dictionary_encode()
    names = [
        hashlib.blake2b(name, digest_size=8).digest() if name else bytes(8) for name in coded.dictionary.to_pylist()
    ]
    return np.frombuffer(b"".join(names), np.uint64)[coded.indices.to_numpy()]


def _same_payload(places: Places, shard: PlannedShard, records: Sequence[int], _: pa.Table) -> Iterator[bytes]:
    return places.payloads(shard, records)


def _same_group(_: Places, __: PlannedShard, records: Sequence[int], table: pa.Table) -> Iterator[bytes]:
    return (table["group"][record].as_py() for record in records)


class Kind(NamedTuple):
    """One kind of leak: the column that tells, the marks that it gives, and what records of one mark must share."""

    name: str
    column: str
    marks: Callable[[pa.Table], Marks]
    proofs: Callable[[Places, PlannedShard, Sequence[int], pa.Table], Iterator[bytes]]
    distance: int | None = None


EXACT = Kind("exact", "content", content_marks, _same_payload, distance=0)
GROUP = Kind("group", "group", group_marks, _same_group)


def find_leaks(
    kind: Kind, places: Places, *, at_once: int = MARKS_AT_ONCE, shared_at_once: int = SHARED_AT_ONCE
) -> Iterator[Leak]:
    """All leaks of a kind: in the order of splits and keys, a hundred thousand marks after the other."""
    for shared in _shared_marks(kind, places, at_once):
        for start in range(0, len(shared), shared_at_once):
            yield from _pair_up(kind, places, shared[start : start + shared_at_once])


def _shared_marks(kind: Kind, places: Places, at_once: int) -> Iterator[Marks]:
    """The marks that are found in two splits, sorted; a part of all marks at a time."""
    records = sum(places.read(shard).num_rows for shard in places.shards)
    passes = 1 + records // at_once
    bounds = [number * 2**64 // passes for number in range(passes + 1)]
    for low, high in itertools.pairwise(bounds):
        found = [_marks_of(split, kind, places, low, high) for split in places.splits]
        ordered = np.sort(np.concatenate(found)) if found else np.empty(0, np.uint64)
        yield np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _marks_of(split: str, kind: Kind, places: Places, low: int, high: int) -> Marks:
    """The different marks of a split from `low` on and below `high`."""
    parts = [np.empty(0, np.uint64)]
    for shard in places.shards:
        if shard.split == split:
            marks = kind.marks(places.read(shard, kind.column))
            parts.append(marks[(marks >= np.uint64(low)) & (marks <= np.uint64(high - 1)) & (marks != _NO_MARK)])
    return np.unique(np.concatenate(parts))


def _pair_up(kind: Kind, places: Places, shared: Marks) -> Iterator[Leak]:
    """The leaks among the records of some marks."""
    alike: defaultdict[tuple[int, bytes], list[Row]] = defaultdict(list)
    for shard in places.shards:
        for mark, proof, row in _rows_of(kind, places, shard, shared):
            alike[mark, proof].append(row)
    pairs = [(row, min(rows)) for rows in alike.values() for row in rows if row.split > min(rows).split]
    for other, one in sorted(pairs):
        group = one.group if kind is GROUP else ""
        yield make_leak(kind.name, places, one, other, distance=kind.distance, group=group)


def _rows_of(kind: Kind, places: Places, shard: PlannedShard, shared: Marks) -> Iterator[tuple[int, bytes, Row]]:
    table = places.read(shard, KEY, "group", "content", "given")
    marks = kind.marks(table)
    records = np.flatnonzero(np.isin(marks, shared)).tolist()
    for record, proof in zip(records, kind.proofs(places, shard, records, table), strict=True):
        yield int(marks[record]), proof, read_row(places, shard, table, record)


def read_row(places: Places, shard: PlannedShard, table: pa.Table, record: int) -> Row:
    """One record of a shard, whose table has the columns key, group and given."""
    key, group, given = (table[name][record].as_py() for name in (KEY, "group", "given"))
    return Row(places.splits.index(shard.split), to_text(key), shard.name, record, given, to_text(group))


def make_leak(kind: str, places: Places, one: Row, other: Row, *, distance: int | None = None, group: str = "") -> Leak:
    """The leak from one record to another of a later split."""
    return Leak(
        kind,
        (one.key, other.key),
        (places.splits[one.split], places.splits[other.split]),
        (one.shard, other.shard),
        (one.record, other.record),
        distance=distance,
        group=group,
        given=one.given or other.given,
    )
