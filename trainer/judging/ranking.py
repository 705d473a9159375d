"""Average precision from counted scores."""

import numpy as np

from trainer.judging.multiset import Ints, Multiset


def average_precisions(scores: Multiset, labels: int) -> list[float | None]:
    """For each label the sum over its scores, from high to low, of precision times the gain in recall.

    A code is `label << 33 | has the label << 32 | key of the score`. None for a label that no example has.
    """
    edges = np.searchsorted(scores.codes, np.arange(labels + 1, dtype=np.uint64) << np.uint64(33))
    halves = np.searchsorted(scores.codes, (np.arange(labels, dtype=np.uint64) * 2 + 1) << np.uint64(32))
    return [_average_precision(scores, *parts) for parts in zip(edges[:-1], halves, edges[1:], strict=True)]


def _average_precision(scores: Multiset, begin: int, half: int, end: int) -> float | None:
    """The codes from `begin` to `half` are of examples without the label, those up to `end` of examples with it."""
    if half == end:
        return None
    keys = scores.codes[begin:end] & np.uint64(2**32 - 1)
    different, place = np.unique(keys, return_inverse=True)
    without, has = np.zeros(len(different), np.int64), np.zeros(len(different), np.int64)
    without[place[: half - begin]] = scores.counts[begin:half]
    has[place[half - begin :]] = scores.counts[half:end]
    return _area(has[::-1], without[::-1])


def _area(has: Ints, without: Ints) -> float:
    found = np.cumsum(has)
    precision = found / (found + np.cumsum(without))
    return float((precision * has).sum() / found[-1])
