"""Cuts the hash order of a split into shards of even size."""

from bisect import bisect_right

from pipelines.config import ShardsConfig
from shards.errors import UsageError

MEGABYTE = 1_000_000


def choose_ranges(
    split: str, prefixes: list[int], weights: list[int], *, images: int, config: ShardsConfig
) -> tuple[int, ...]:
    """Where each shard of a split starts: exactly `count` of them, or as few as keep all within `target_mb`."""
    fixed = config.count.get(split) if isinstance(config.count, dict) else config.count
    if fixed is not None:
        if fixed > images:
            raise UsageError(f"shards.count asks for {fixed} shards, but {split} has {images} images; ask for fewer")
        return cut_evenly(prefixes, weights, count=fixed)
    # One image larger than the target needs a shard of its own, and must not shrink all the others.
    limit = max(round(config.target_mb * MEGABYTE), *weights, 1)
    count = max(-(-sum(weights) // limit), config.min_count)
    starts = cut_evenly(prefixes, weights, count=count)
    while max(range_weights(prefixes, weights, starts)) > limit and len(starts) < len(prefixes):
        count += max(1, count // 100)
        starts = cut_evenly(prefixes, weights, count=count)
    return starts


def cut_evenly(prefixes: list[int], weights: list[int], *, count: int) -> tuple[int, ...]:
    """Cuts sorted prefixes into `count` ranges of nearly equal weight, none empty; returns where each range starts."""
    count = min(count, len(prefixes))
    total, done, starts = sum(weights), 0, [0]
    for position, weight in enumerate(weights):
        left = len(prefixes) - position
        # A new range starts once its even share of the weight is reached, or when each prefix left must start one.
        due = done * count >= total * len(starts) or left <= count - len(starts)
        if position and len(starts) < count and due:
            starts.append(prefixes[position])
        done += weight
    return tuple(starts)


def range_weights(prefixes: list[int], weights: list[int], starts: tuple[int, ...]) -> list[int]:
    """What each range weighs."""
    totals = [0] * len(starts)
    for prefix, weight in zip(prefixes, weights, strict=True):
        totals[bisect_right(starts, prefix) - 1] += weight
    return totals


def still_fit(starts: tuple[int, ...], prefixes: list[int], weights: list[int], config: ShardsConfig) -> bool:
    """Whether ranges that were chosen for other inputs will do: none is empty, and none has outgrown its size."""
    if not starts:
        return False
    totals = range_weights(prefixes, weights, starts)
    limit = 2 * max(round(config.target_mb * MEGABYTE), *weights)
    return min(totals) > 0 and (config.count is not None or max(totals) <= limit)
