"""Stratified splits: each class is dealt by itself, so that its share of every split is what the fractions say.

Inside a stratum (a class), units stand in the order of their hashes, and each split takes a range of that order. The
ranges are as wide as the split still lacks: what the dataset has is counted and never moves. Of a stratum of single
inputs every split gets its share to within one input, and the roundings of the strata even each other out; where inputs
are tied together (groups, duplicates), to within the largest unit.

Pure functions; `dealing` carries them. Where the ranges begin is found in two steps, so that nobody holds a number for
each input: a histogram of the hashes tells the bins that the beginnings lie in, and only what falls there is sorted.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.config import SplitsConfig
from pipelines.planning.splits import bound_side, follow_side, is_given, unit_of, unit_position
from pipelines.values import InputRef

BIN_BITS = 8
_BIN_SHIFT, _END = 64 - BIN_BITS, 1 << 64
Starts = tuple[int, ...]  # the position at which each split but the first begins


class Unit(NamedTuple):
    """Inputs that are dealt as one: how many can still be dealt, and how many are already where they stay."""

    stratum: str
    position: int
    free: int
    bound: tuple[tuple[str, int], ...] = ()  # (split, inputs)


class Cut(NamedTuple):
    """Where a split begins: so many inputs into a bin of the histogram."""

    bin: int
    inputs: int


@dataclass
class Stratum:
    """How the inputs of a stratum are spread: the free over the bins of the hash, the bound over the splits."""

    free: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1 << BIN_BITS, np.int64))
    bound: Counter[str] = field(default_factory=Counter)

    def add(self, unit: Unit) -> "Stratum":
        """Counts one unit."""
        self.free[unit.position >> _BIN_SHIFT] += unit.free
        self.bound.update(dict(unit.bound))
        return self

    def merge(self, other: "Stratum") -> "Stratum":
        """Adds another part of the stratum."""
        self.free += other.free
        self.bound.update(other.bound)
        return self


def stratum_of(ref: InputRef, counts: Mapping[str, int]) -> str:
    """The class of an input; of several labels the one that is rarest by `counts`, the first by name of several."""
    return min(ref.labels, key=lambda label: (counts.get(label, 0), label), default="")


def is_counted(ref: InputRef) -> bool:
    """Whether an input counts when shares are measured: it is there, and nothing is known against it."""
    return not (ref.fault or (ref.before and ref.before.gone))


def describe_unit(refs: Iterable[InputRef], splits: SplitsConfig, counts: Mapping[str, int]) -> Unit:
    """The unit that some refs make up; its stratum is that of most of them. Inputs with a given split do not count."""
    follow = follow_side(refs, splits)
    strata: Counter[str] = Counter()
    sides: Counter[str] = Counter()
    for ref in refs:
        unit = unit_of(ref)
        if is_counted(ref):
            strata[stratum_of(ref, counts)] += 1
            sides[bound_side(ref, splits) or follow] += 0 if is_given(ref, splits) else 1
    stratum = min(strata, key=lambda name: (-strata[name], name), default="")
    bound = tuple(sorted((side, count) for side, count in sides.items() if side and count))
    return Unit(stratum, unit_position(unit, splits), sides[""], bound)


def allot(strata: Mapping[str, Stratum], fractions: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
    """How many free inputs of each stratum every split gets; depends on nothing but the counts.

    Each gets its share rounded up or down; which of both, decides what it is owed by the strata before.
    """
    shares = [Fraction(str(fraction)) for fraction in fractions.values()]
    shares = [share / sum(shares) for share in shares]
    owed = [Fraction(0)] * len(shares)
    allotted = {}
    for name in sorted(strata):
        bound = [strata[name].bound[split] for split in fractions]
        wanted = fill_up(int(strata[name].free.sum()), bound, shares)
        allotted[name] = _round(wanted, owed)
        owed = [debt + want - got for debt, want, got in zip(owed, wanted, allotted[name], strict=True)]
    return allotted


def fill_up(free: int, bound: Sequence[int], shares: Sequence[Fraction]) -> list[Fraction]:
    """Shares free inputs out so that the totals come as close to the shares as they can; nothing is taken away."""
    total = free + sum(bound)
    lacking = [max(share * total - there, Fraction(0)) for share, there in zip(shares, bound, strict=True)]
    return [lack * free / (sum(lacking) or 1) for lack in lacking]


def _round(wanted: Sequence[Fraction], owed: Sequence[Fraction]) -> tuple[int, ...]:
    whole = [int(want) for want in wanted]
    parts = [number for number, want in enumerate(wanted) if want > whole[number]]
    parts.sort(key=lambda number: (-(owed[number] + wanted[number] - whole[number]), number))
    for number in parts[: int(sum(wanted)) - sum(whole)]:
        whole[number] += 1
    return tuple(whole)


def find_cuts(stratum: Stratum, allotted: Sequence[int]) -> tuple[Cut, ...]:
    """In which bin each split but the first begins."""
    before = np.concatenate([[0], np.cumsum(stratum.free)])  # the inputs before each bin
    wanted = np.cumsum(allotted)[:-1]
    bins = np.searchsorted(before, wanted, side="right") - 1
    return tuple(Cut(int(each), int(want - before[each])) for each, want in zip(bins, wanted, strict=True))


def is_cut(unit: Unit, cuts: Sequence[Cut]) -> bool:
    """Whether a split begins inside of the unit's bin, so that its position must be known exactly."""
    return bool(unit.free) and any(cut.inputs and cut.bin == unit.position >> _BIN_SHIFT for cut in cuts)


def find_starts(cuts: Sequence[Cut], units: Iterable[tuple[int, int]]) -> Starts:
    """Where each split but the first begins; `units` are (position, inputs) of all that lie in bins that are cut."""
    ordered = sorted(units)
    return tuple(_find_start(cut, [unit for unit in ordered if unit[0] >> _BIN_SHIFT == cut.bin]) for cut in cuts)


def _find_start(cut: Cut, units: Sequence[tuple[int, int]]) -> int:
    """The position before which there are as many inputs of the bin as the cut says, or as near as units allow."""
    positions = [*(position for position, _ in units), (cut.bin + 1) << _BIN_SHIFT]
    before = np.concatenate([[0], np.cumsum([inputs for _, inputs in units], dtype=np.int64)])
    if not cut.inputs:
        return cut.bin << _BIN_SHIFT
    return min(positions[int(np.abs(before - cut.inputs).argmin())], _END)


def side_of(unit: Unit, starts: Mapping[str, Starts], splits: SplitsConfig) -> str:
    """The split of a free unit; none if its stratum has nothing that could be shared out."""
    if unit.stratum not in starts:
        return ""
    return list(splits.fractions)[bisect_right(starts[unit.stratum], unit.position)]
