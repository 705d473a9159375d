"""Where everything random about a record comes from: (seed, epoch, record), and how often it was drawn before.

Each use of chance folds a number of its own into the record's seed, so that switching one change on or off leaves the
others as they are.
"""

from enum import IntEnum
from typing import Any

import tensorflow as tf

Tensor = Any


class Use(IntEnum):
    """What a record's seed is used for; a number, once given, stays."""

    CROP = 0
    SHIFT = 1
    FLIP = 2
    FLIP_VERTICAL = 3
    COLOUR = 4
    CUTOUT = 5
    MIX = 6
    BETA = 7
    POLICY = 100  # and the numbers that follow, one for each operation


def record_seed(seed: int, *, epoch: Tensor, ordinal: Tensor, occurrence: Tensor = 0) -> Tensor:
    """The int64 [2] seed of one record in one epoch, another one each time that the epoch draws it."""
    return tf.stack(
        [tf.cast(epoch, tf.int64) * 2**31 + seed, tf.cast(occurrence, tf.int64) * 2**40 + tf.cast(ordinal, tf.int64)]
    )


def seed_of(record: dict[str, Tensor], seed: int) -> Tensor:
    """The seed of a record as it comes from a dataset."""
    numbers = {name: record[name] for name in ("epoch", "ordinal", "occurrence")}
    return record_seed(seed, **numbers)


def fold(seed: Tensor, use: int) -> Tensor:
    """The seed for one use."""
    return tf.random.experimental.stateless_fold_in(seed, use)


def uniform(seed: Tensor, use: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers from 0 up to, not including, 1."""
    return tf.random.stateless_uniform(shape, fold(seed, use))
