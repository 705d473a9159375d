"""Numbers and how often each was seen: what confusions and ranked scores are counted in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Multiset:
    """Different codes in ascending order and their counts; the lowest `dropped` bits of every code are 0.

    Bits are dropped only when there are more different codes than memory was granted for. How many does not depend on
    the order or the parts in which codes came: a part is rounded only when the whole has to be.
    """

    codes: Codes
    counts: Ints
    dropped: int = 0

    @staticmethod
    def of(codes: npt.NDArray[np.integer]) -> "Multiset":
        """Each code counted."""
        return Multiset(*np.unique(codes.astype(np.uint64), return_counts=True))

    @property
    def total(self) -> int:
        """How many codes were counted."""
        return int(self.counts.sum())


NONE = Multiset(np.empty(0, np.uint64), np.empty(0, np.int64))


def merge_multisets(parts: Sequence[Multiset], *, limit: int | None = None) -> Multiset:
    """All codes of the parts; those that differ only in their lowest bits are taken for one if there are too many."""
    dropped = max((part.dropped for part in parts), default=0)
    codes = np.concatenate([NONE.codes, *(part.codes for part in parts)])
    counts = np.concatenate([NONE.counts, *(part.counts for part in parts)])
    merged = _regroup(codes, counts, dropped)
    while limit is not None and len(merged.codes) > limit:
        merged = _regroup(merged.codes, merged.counts, merged.dropped + 1)
    return merged


def _regroup(codes: Codes, counts: Ints, dropped: int) -> Multiset:
    rounded = codes >> np.uint64(dropped) << np.uint64(dropped)
    order = np.argsort(rounded, kind="stable")
    ordered = rounded[order]
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] + np.uint64(1)))
    return Multiset(ordered[first], np.add.reduceat(counts[order], first) if len(first) else counts, dropped)


def score_keys(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Numbers of 32 bits in the order of the scores; equal scores have equal numbers."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # + 0 makes -0.0 the same as 0.0
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
