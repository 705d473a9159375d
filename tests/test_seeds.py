"""What is random about a record comes from numbers that say which record it is."""

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.order import mix
from trainer.reading.seeds import record_seed, uniforms


@settings(deadline=None)  # the first call builds TensorFlow's kernels
@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), min_size=1, max_size=5), st.integers(0, 200))
def test_uniforms_are_the_hash_of_the_order(seeds: list[tuple[int, int]], use: int) -> None:
    found = uniforms(tf.constant(seeds, tf.int64), use, 3).numpy()
    first, second = np.array(seeds, np.int64).T[..., np.newaxis]
    expected = (mix(first, second, use, np.arange(3)) >> np.uint64(40)).astype(np.float32) / 2**24
    np.testing.assert_array_equal(found, expected)
    assert ((found >= 0) & (found < 1)).all()


def test_uniforms_of_neighbours_are_unlike() -> None:
    numbers = tf.range(10_000, dtype=tf.int64)
    drawn = uniforms(
        record_seed(1, epoch=tf.zeros_like(numbers), ordinal=numbers, occurrence=numbers * 0), 0, 2
    ).numpy()
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 0.02
    assert np.abs(np.histogram(drawn, 10, (0, 1))[0] / drawn.size - 0.1).max() < 0.01
    neighbours = np.corrcoef([drawn[:-1, 0], drawn[1:, 0], drawn[1:, 1]])
    assert np.abs(neighbours - np.eye(3)).max() < 0.05


def test_seeds_of_many_records_are_those_of_each() -> None:
    ordinals, occurrences = tf.range(4, dtype=tf.int64), tf.constant([0, 1, 0, 2], tf.int64)
    many = record_seed(9, epoch=tf.fill([4], 3), ordinal=ordinals, occurrence=occurrences).numpy()
    each = [record_seed(9, epoch=3, ordinal=n, occurrence=occurrences[n]).numpy() for n in range(4)]
    np.testing.assert_array_equal(many, each)
    assert len(np.unique(many, axis=0)) == 4
