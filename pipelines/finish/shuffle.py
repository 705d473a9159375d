"""Shows how well a dataset is shuffled: whether the order of its records tells anything of their source or class.

Two tests of each split. The runs test of Wald and Wolfowitz, in its form for several kinds, counts how often neighbours
are of one kind: the kinds are the halves of the source's order, and the classes. The chi-square test compares the
classes of every shard with what drawing at random gives. The order of the source is that of the keys, with numbers in
them by value. A split of many examples is judged by the first of each shard.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from pipelines.values import Receipt
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.facts import LABEL_NAME
from pipelines.writing.seen import KEY, REASON, read_seen, to_text
from shards.manifest import ShuffleEntry

Kinds = npt.NDArray[np.int64]
MOST, FEWEST = 100_000, 20  # examples of a split that are looked at, and with fewer nothing can be said
_SHARD_LEAST, _CELL_LEAST = 20, 5.0


class Sampled(NamedTuple):
    """The first examples of a shard: their keys, and their classes unless there are none."""

    keys: list[str]
    classes: list[bytes]


def measure_shuffle(
    splits: Sequence[str], receipts: Sequence[Receipt], folder: BuildFolder, *, most: int = MOST
) -> tuple[ShuffleEntry, ...]:
    """How well every split is shuffled."""
    return tuple(_measure(name, [r for r in receipts if r.split == name], folder, most) for name in splits)


def _measure(name: str, receipts: Sequence[Receipt], folder: BuildFolder, most: int) -> ShuffleEntry:
    shards = list(sample_shards(receipts, folder, most))
    keys = [key for shard in shards for key in shard.keys]
    entry = ShuffleEntry(split=name, examples=len(keys), shards=len(shards))
    if len(keys) < FEWEST:
        return entry
    entry = entry.model_copy(update={"source_z": runs_z(source_halves(keys))})
    classes = number_kinds([each for shard in shards for each in shard.classes])
    if len(classes) != len(keys):
        return entry
    owners = np.repeat(np.arange(len(shards)), [len(shard.keys) for shard in shards])
    return entry.model_copy(update={"class_z": runs_z(classes), "mix_p": mix_p(cross_table(owners, classes))})


def sample_shards(receipts: Sequence[Receipt], folder: BuildFolder, most: int) -> Iterator[Sampled]:
    """The examples of a split that are looked at; of each shard as large a part."""
    records = sum(receipt.records for receipt in receipts)
    for receipt in receipts:
        count = receipt.records if records <= most else receipt.records * most // records
        seen = read_seen(folder.seen(receipt.shard), (KEY, REASON))
        keys = seen.filter(pa.compute.equal(seen[REASON], ""))[KEY][:count].to_pylist()
        yield Sampled([to_text(key) for key in keys], _read_classes(folder.facts(receipt.shard), count))


def _read_classes(path: Path, count: int) -> list[bytes]:
    with pa.memory_map(str(path)) as stream, pa.ipc.open_file(stream) as reader:  # opens no other column
        if LABEL_NAME not in reader.schema.names:
            return []
        return [b"\0".join(names) for names in reader.read_all()[LABEL_NAME][:count].to_pylist()]


def source_halves(keys: Sequence[str]) -> Kinds:
    """0 for keys of the first half of the source's order, 1 for the others."""
    order = sorted(range(len(keys)), key=lambda place: natural_order(keys[place]))
    halves = np.zeros(len(keys), np.int64)
    halves[order[len(keys) // 2 :]] = 1
    return halves


def natural_order(key: str) -> list[tuple[int, str]]:
    """Sorts keys as people do: 2.jpg before 10.jpg."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", key)]


def number_kinds(kinds: Sequence[bytes]) -> Kinds:
    """Kinds as numbers."""
    return np.unique(np.array(kinds, dtype=object), return_inverse=True)[1].astype(np.int64)


def runs_z(kinds: Kinds) -> float | None:
    """By how many standard deviations the runs of equal neighbours differ in number from those of a random order.

    Negative: equals stand together; positive: they take turns. None if all are of one kind, or each of its own.
    """
    total = len(kinds)
    counts = [int(count) for count in np.unique(kinds, return_counts=True)[1]]
    squares, cubes = sum(count**2 for count in counts), sum(count**3 for count in counts)
    spread = squares * (squares + total * (total + 1)) - 2 * total * cubes - total**3
    if spread <= 0:
        return None
    runs = 1 + int(np.count_nonzero(kinds[1:] != kinds[:-1]))
    expected = (total * (total + 1) - squares) / total
    return round((runs - expected) / math.sqrt(spread / (total**2 * (total - 1))), 4)


def cross_table(rows: Kinds, columns: Kinds) -> npt.NDArray[np.int64]:
    """How often each pair of numbers occurs."""
    table = np.zeros((rows.max() + 1, columns.max() + 1), np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


def mix_p(table: npt.NDArray[np.int64]) -> float | None:
    """How likely classes drawn at random are mixed as unevenly over the shards as in a table of shards by classes.

    Small neighbours are pooled, so that a cell is expected to hold five or more; None if nothing is left to compare.
    """
    table = _pool_rows(table, _SHARD_LEAST)
    smallest = table.sum(axis=1).min() / table.sum()
    table = _pool_rows(table.T, _CELL_LEAST / smallest).T
    if min(table.shape) < 2:
        return None
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return float(f"{chi_square_tail(float(((table - expected) ** 2 / expected).sum()), freedom):.4g}")


def _pool_rows(table: npt.NDArray[np.int64], least: float) -> npt.NDArray[np.int64]:
    """The table with neighbouring rows added up until each holds `least` or more."""
    pools = [np.zeros(table.shape[1], np.int64)]
    for row in table:
        if pools[-1].sum() >= least:
            pools.append(np.zeros_like(row))
        pools[-1] = pools[-1] + row
    if len(pools) > 1 and pools[-1].sum() < least:
        last = pools.pop()
        pools[-1] = pools[-1] + last
    return np.array(pools)


def chi_square_tail(value: float, freedom: int) -> float:
    """The probability that chi-square is at least `value`: the upper incomplete gamma function, regularised."""
    half, x = freedom / 2, value / 2
    if x <= 0:
        return 1.0
    front = math.exp(half * math.log(x) - x - math.lgamma(half))
    if x < half + 1:  # the series of the lower function converges fast below the mean, and the fraction above it
        term = total = 1 / half
        step = half
        while term > total * 1e-15:
            step += 1
            term *= x / step
            total += term
        return 1 - front * total
    tiny = 1e-300
    b, c, d = x + 1 - half, 1 / tiny, 1 / (x + 1 - half)
    fraction = d
    for number in range(1, 10_000):
        a = -number * (number - half)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
