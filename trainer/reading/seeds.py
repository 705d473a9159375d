"""Where everything random about a record comes from: (seed, epoch, record), and how often it was drawn before.

Each use of chance folds a number of its own into the record's seed, so that switching one change on or off leaves the
others as they are.
"""

from enum import IntEnum
from typing import Any

import tensorflow as tf

Tensor = Any
_STEP = 0x9E3779B97F4A7C15  # of splitmix64


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
    """The int64 [2] seed of one record in one epoch, another one each time that the epoch draws it.

    Of many records, given as vectors, the seeds [n, 2].
    """
    return tf.stack(
        [tf.cast(epoch, tf.int64) * 2**31 + seed, tf.cast(occurrence, tf.int64) * 2**40 + tf.cast(ordinal, tf.int64)],
        axis=-1,
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


def uniforms(seeds: Tensor, use: int, count: int) -> Tensor:
    """Numbers from 0 up to, not including, 1 for any number of seeds [..., 2] at once: [..., count].

    TensorFlow's own generators take one seed at a time, and a call for each record costs as much as a tenth of its
    decoding. These are the hash of `shards.order.mix`.
    """
    first, second = tf.unstack(tf.cast(seeds, tf.uint64)[..., tf.newaxis, :], axis=-1)
    state = tf.constant(_STEP, tf.uint64)
    for part in (first, second, tf.constant(use, tf.uint64), tf.constant([*range(count)], tf.uint64)):
        state = tf.bitwise.bitwise_xor(part, state) + tf.constant(_STEP, tf.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = _fold_down(state, shift) * tf.constant(factor, tf.uint64)
        state = _fold_down(state, 31)
    return tf.cast(tf.bitwise.right_shift(state, tf.constant(40, tf.uint64)), tf.float32) / 2**24


def _fold_down(state: Tensor, bits: int) -> Tensor:
    return tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(bits, tf.uint64)))
