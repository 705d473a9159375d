"""Which examples two datasets do not share. An example is known by its `key`, and its record by a hash.

Shards that both datasets have in the same split are not read at all: their examples are the same, whatever else the
datasets hold. The examples of the others are matched by hashes (diff_table.py); those that differ are read again, one
by one, to be named.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shards.diff_table import Column, Hashes, PlacedShard, Rows, Table, key_of
from shards.example import Values, encode_example
from shards.manifest import Manifest

Kind = Literal["added", "removed", "changed", "moved"]
KINDS: tuple[Kind, ...] = ("added", "removed", "changed", "moved")
Pairs = npt.NDArray[np.int64]  # on each line a row of the old table and one of the new, or NONE
NONE = -1
ROWS_AT_A_TIME = 1 << 20  # sorting takes some hundred bytes for each


@dataclass(frozen=True)
class FeatureChange:
    """A feature of an example before and after; None where the record has none of that name."""

    name: str
    old: Values | None
    new: Values | None


@dataclass(frozen=True)
class ExampleChange:
    """An example that differs. What was added has no old split, what was removed no new one."""

    key: str
    old_split: str | None
    new_split: str | None
    features: tuple[FeatureChange, ...]


@dataclass(frozen=True)
class ExampleChanges:
    """The examples that differ, by kind, in stored order: that of the old dataset, and of the new for what was added.

    An example changed if its split has its key before and after, with other bytes. It moved if its key was in one split
    and is in another, whether its bytes are the same or not. Should a key be there several times, each example has at
    most one counterpart: one in the same split before one in another, and one with the same bytes before others.
    """

    old: Table
    new: Table
    pairs: Mapping[Kind, Pairs]

    def __len__(self) -> int:
        """How many examples differ."""
        return sum(map(len, self.pairs.values()))

    def count_splits(self, kind: Kind) -> dict[tuple[str | None, str | None], int]:
        """How many examples of a kind have which old and new split."""
        names: list[str | None] = [
            *dict.fromkeys(s.split for table in (self.old, self.new) for s in table.shards),
            None,
        ]
        before, after = self.pairs[kind].T
        codes = _split_numbers(self.old, before, names) * len(names) + _split_numbers(self.new, after, names)
        counts = np.bincount(codes)
        return {
            (names[code // len(names)], names[code % len(names)]): int(counts[code]) for code in np.flatnonzero(counts)
        }

    def describe(self, kind: Kind) -> Iterator[ExampleChange]:
        """The examples of a kind, read one by one."""
        for before, after in self.pairs[kind].tolist():
            old = None if before == NONE else self.old.read(before)
            new = None if after == NONE else self.new.read(after)
            yield ExampleChange(
                key=key_of(old or new or {}).decode("utf-8", "surrogateescape"),
                old_split=None if old is None else self.old.split_of(before),
                new_split=None if new is None else self.new.split_of(after),
                features=tuple(_feature_changes(old, new)) if old and new else (),
            )


def _split_numbers(table: Table, rows: Rows, names: Sequence[str | None]) -> Rows:
    """Where in `names` the split of each row stands; None stands last."""
    of_shards = np.array([*(names.index(shard.split) for shard in table.shards), len(names) - 1])
    return of_shards[np.where(rows == NONE, len(table.shards), table.shard_numbers(rows))]


def _feature_changes(old: Mapping[str, Values], new: Mapping[str, Values]) -> Iterator[FeatureChange]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        # Encoded, because Python has -0.0 equal to 0.0, and NaN equal to nothing.
        if before is None or after is None or encode_example({name: before}) != encode_example({name: after}):
            yield FeatureChange(name, before, after)


def unshared_shards(old: Manifest, new: Manifest) -> tuple[list[PlacedShard], list[PlacedShard]]:
    """The shards of each dataset that the other does not have, byte for byte, in the same split."""
    before, after = _placed_shards(old), _placed_shards(new)
    return _without(before, after), _without(after, before)


def _placed_shards(manifest: Manifest) -> list[PlacedShard]:
    return [PlacedShard(split.name, shard) for split in manifest.splits for shard in split.shards]


def _without(shards: Sequence[PlacedShard], others: Sequence[PlacedShard]) -> list[PlacedShard]:
    there = Counter((other.split, other.entry.sha256) for other in others)
    rest = []
    for shard in shards:
        there[shard.split, shard.entry.sha256] -= 1
        if there[shard.split, shard.entry.sha256] < 0:  # the same bytes twice are two shards
            rest.append(shard)
    return rest


def match_examples(old: Table, new: Table, *, rows_at_a_time: int = ROWS_AT_A_TIME) -> ExampleChanges:
    """Finds the counterpart of every example, and tells what differs; equal keys are matched in the same part."""
    parts = 1 + (len(old) + len(new)) // rows_at_a_time
    columns = [table.hashes("key", np.arange(len(table))) % np.uint64(parts) for table in (old, new)]
    found = [_match_part(old, new, [np.flatnonzero(column == part) for column in columns]) for part in range(parts)]
    pairs = {kind: np.concatenate([pairs[kind] for pairs in found]) for kind in KINDS}
    return ExampleChanges(old, new, {kind: _in_stored_order(pairs[kind], kind) for kind in KINDS})


def _match_part(old: Table, new: Table, rows: list[Rows]) -> dict[Kind, Pairs]:
    def match(*columns: Column) -> Pairs:
        """Pairs what is left and equal in all columns, and takes it away."""
        hashes = [np.concatenate([old.hashes(c, rows[0]), new.hashes(c, rows[1])]) for c in columns]
        paired, unpaired = pair_equal(hashes, len(rows[0]))
        pairs = np.stack((rows[0][paired[0]], rows[1][paired[1]]), axis=1)
        rows[:] = rows[0][unpaired[0]], rows[1][unpaired[1]]
        return pairs

    match("place", "record")
    changed = match("place")
    moved = np.concatenate((match("key", "record"), match("key")))
    removed = np.stack((rows[0], np.full_like(rows[0], NONE)), axis=1)
    added = np.stack((np.full_like(rows[1], NONE), rows[1]), axis=1)
    return {"added": added, "removed": removed, "changed": changed, "moved": moved}


def pair_equal(columns: Sequence[Hashes], old_count: int) -> tuple[tuple[Rows, Rows], tuple[Rows, Rows]]:
    """The positions of old and new rows that are equal in all columns, pair by pair, and of those that are left over.

    In each column `old_count` old rows stand before the new ones. Of three equal old rows and two new ones, two are
    paired; positions of new rows count from the first new one.
    """
    order = np.lexsort(columns)  # stable: of equal rows the old come first
    is_old = order < old_count
    starts = np.flatnonzero(_differs_from_previous(columns, order))
    sizes = np.diff(starts, append=len(order))
    olds = np.diff(np.append(0, np.cumsum(is_old))[np.append(starts, len(order))])
    rank = np.arange(len(order)) - np.repeat(starts, sizes) - np.where(is_old, 0, np.repeat(olds, sizes))
    paired = rank < np.repeat(np.minimum(olds, sizes - olds), sizes)
    return (order[paired & is_old], order[paired & ~is_old] - old_count), (
        order[~paired & is_old],
        order[~paired & ~is_old] - old_count,
    )


def _differs_from_previous(columns: Sequence[Hashes], order: Rows) -> npt.NDArray[np.bool_]:
    differs = np.zeros(len(order), dtype=np.bool_)
    differs[:1] = True
    for column in columns:
        ordered = column[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    return differs


def _in_stored_order(pairs: Pairs, kind: Kind) -> Pairs:
    return pairs[np.argsort(pairs[:, 1 if kind == "added" else 0], kind="stable")]
