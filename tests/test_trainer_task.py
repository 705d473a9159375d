"""Each kind of label: targets, losses and scores that can be worked out by hand."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.learning.task import MultiLabel, Regression, SingleLabel

SINGLE, MULTI, REGRESSION = SingleLabel(("a", "b", "c")), MultiLabel(("a", "b", "c")), Regression(2)


def test_single() -> None:
    outputs, targets = tf.constant([[2.0, 0, 0], [0, 3, 0], [0, 0, 4]]), tf.constant([0, 2, 2], tf.int64)
    losses = [np.log(np.exp(2) + 2) - 2, np.log(np.exp(3) + 2), np.log(np.exp(4) + 2) - 4]
    np.testing.assert_allclose(SINGLE.losses(outputs, targets), losses, rtol=1e-5)
    assert SINGLE.scores(outputs, targets).numpy().tolist() == [1, 0, 1]
    assert SINGLE.outputs == 3


def test_multi_targets_are_many_hot() -> None:
    assert MULTI.target(tf.constant([2, 0], tf.int64)).numpy().tolist() == [1, 0, 1]
    assert MULTI.target(tf.constant([1, 1], tf.int64)).numpy().tolist() == [0, 1, 0], "a label twice is a label"
    assert MULTI.target(tf.constant([], tf.int64)).numpy().tolist() == [0, 0, 0]


def test_multi() -> None:
    outputs = tf.constant([[1.0, -1.0, 2.0], [-1.0, 1.0, -3.0]])
    targets = tf.constant([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    right = np.where(targets == 1, outputs, -outputs)
    np.testing.assert_allclose(MULTI.losses(outputs, targets), np.log1p(np.exp(-right)).mean(axis=1), rtol=1e-5)
    assert MULTI.scores(outputs, targets).numpy().tolist() == [1, 0]
    assert MULTI.outputs == 3


def test_smoothing_is_cross_entropy_with_soft_targets() -> None:
    outputs = np.array([[2.0, 0.0, -1.0], [0.5, 3.0, 0.0]], np.float32)
    log_softmax = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
    soft = np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    losses = SINGLE.losses(tf.constant(outputs), tf.constant([0, 2], tf.int64), smoothing=0.3)
    np.testing.assert_allclose(losses, -(soft * log_softmax).sum(axis=1), rtol=1e-6)
    hard = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    probabilities, soft = 1 / (1 + np.exp(-outputs)), 0.7 * hard + 0.15
    expected = -(soft * np.log(probabilities) + (1 - soft) * np.log(1 - probabilities)).mean(axis=1)
    np.testing.assert_allclose(
        MULTI.losses(tf.constant(outputs), tf.constant(hard), smoothing=0.3), expected, rtol=1e-5
    )


def test_regression() -> None:
    outputs, targets = tf.constant([[1.0, 2.0], [0.0, 0.0], [9.0, 9.0]]), tf.constant([[2.0, 2.0], [0.0, 4.0], [0, 0]])
    assert REGRESSION.losses(outputs, targets).numpy().tolist() == [0.5, 8.0, 81.0]
    assert REGRESSION.scores(outputs, targets).numpy().tolist() == pytest.approx([0.5, 2.0, 9.0])
    assert REGRESSION.outputs == 2
