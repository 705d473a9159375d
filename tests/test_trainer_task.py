"""Each kind of label: losses and counts that can be worked out by hand."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.judging.results import LabelCount
from trainer.judging.tally import make_tally
from trainer.learning.task import MultiLabel, Regression, SingleLabel

SINGLE, MULTI, REGRESSION = SingleLabel(("a", "b", "c")), MultiLabel(("a", "b", "c")), Regression(2)


def test_single_counts_each_example_in_its_class() -> None:
    outputs = tf.constant([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])
    targets, weights = tf.constant([0, 2, 2, 1], tf.int64), tf.constant([1.0, 1.0, 1.0, 0.0])
    result = make_tally(SINGLE).summarise(
        make_tally(SINGLE).sums(outputs, targets, weights).numpy(), split="test", step=7
    )
    assert [(each.examples, each.correct) for each in result.classes] == [(1, 1), (0, 0), (2, 1)]
    losses = [np.log(np.exp(row).sum()) - row[label] for row, label in zip(outputs.numpy(), [0, 2, 2], strict=False)]
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert (result.metrics, result.counted) == ({"accuracy": 2 / 3}, "2 of 3")
    assert result.table()[1:] == [["a", "1", "1", "1.0000"], ["b", "0", "0", "-"], ["c", "2", "1", "0.5000"]]


def test_multi_targets_are_many_hot() -> None:
    assert MULTI.target(tf.constant([2, 0], tf.int64)).numpy().tolist() == [1, 0, 1]
    assert MULTI.target(tf.constant([1, 1], tf.int64)).numpy().tolist() == [0, 1, 0], "a label twice is a label"
    assert MULTI.target(tf.constant([], tf.int64)).numpy().tolist() == [0, 0, 0]


def test_multi_counts_decisions() -> None:
    outputs = tf.constant([[1.0, -1.0, 2.0], [-1.0, 1.0, -3.0], [5.0, 5.0, 5.0]])
    targets = tf.constant([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    result = make_tally(MULTI).summarise(
        make_tally(MULTI).sums(outputs, targets, tf.constant([1.0, 1.0, 0.0])).numpy(), split="test", step=7
    )
    assert result.labels == (LabelCount("a", 2, 1, 1), LabelCount("b", 1, 1, 1), LabelCount("c", 1, 1, 1))
    assert (result.examples, result.exact) == (2, 1)
    assert result.metrics == {"f1": 6 / 7, "precision": 1.0, "recall": 0.75, "exact_match": 0.5}
    right = np.where(targets[:2] == 1, outputs[:2], -outputs[:2])
    assert result.loss == pytest.approx(np.log1p(np.exp(-right)).mean(), rel=1e-6)
    assert result.as_dict()["labels"][0] == {"label": "a", "examples": 2, "given": 1, "correct": 1}
    assert result.table()[1] == ["a", "2", "1", "1", "1.0000", "0.5000", "0.6667"]


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


def test_labels_that_never_occur_count_as_zero() -> None:
    never = LabelCount("a", 0, 0, 0)
    assert (never.precision, never.recall, never.f1) == (0, 0, 0)


def test_regression_measures_errors() -> None:
    outputs, targets = tf.constant([[1.0, 2.0], [0.0, 0.0], [9.0, 9.0]]), tf.constant([[2.0, 2.0], [0.0, 4.0], [0, 0]])
    weights = tf.constant([1.0, 1.0, 0.0])
    result = make_tally(REGRESSION).summarise(
        make_tally(REGRESSION).sums(outputs, targets, weights).numpy(), split="test", step=7
    )
    assert (result.examples, result.errors, result.loss) == (2, (0.5, 2.0), (0.5 + 8) / 2)
    assert (result.metrics, result.counted) == ({"mae": 1.25}, "2 examples")
    assert result.table() == [["target", "mae"], ["0", "0.5000"], ["1", "2.0000"]]
    assert REGRESSION.scores(outputs, targets).numpy().tolist() == [0.5, 2.0, 9.0]


@pytest.mark.parametrize("task", [SINGLE, MULTI, REGRESSION])
def test_widths_are_told_rightly(task: SingleLabel | MultiLabel | Regression) -> None:
    outputs = tf.ones([4, task.outputs])
    targets = tf.zeros([4], tf.int64) if task is SINGLE else tf.zeros([4, task.outputs])
    assert make_tally(task).sums(outputs, targets, tf.ones([4])).shape == (make_tally(task).width,)
