"""What is learnt: for each kind of label what the records hold, and the loss and score of a network's outputs.

Counting over a split is in `judging`, what a served model answers in `serving.answers`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from trainer.reading.source import Source

Tensor = Any
Weights = tuple[float, ...] | None


class Task(ABC):
    """One kind of label. `feature` is its name in the records, `score` what training reports beside the loss."""

    feature: ClassVar[str]
    score: ClassVar[str]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers the network gives for an example."""

    @property
    @abstractmethod
    def stored(self) -> Any:
        """How the feature is parsed from a record."""

    def target(self, stored: Tensor) -> Tensor:
        """What the network should have said about one example."""
        return stored

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0, weights: Weights = None) -> Tensor:
        """The loss of each example.

        `smoothing` is how much of the targets is spread over all labels, `weights` how much each label counts.
        """

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The `score` of each example."""


@dataclass(frozen=True)
class SingleLabel(Task):
    """Each example has one class: softmax and its cross-entropy."""

    labels: tuple[str, ...]
    feature = "label"
    score = "accuracy"

    @property
    def outputs(self) -> int:
        """A logit per class."""
        return len(self.labels)

    @property
    def stored(self) -> Any:
        """The class id."""
        return tf.io.FixedLenFeature([], tf.int64)

    def losses(self, outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0, weights: Weights = None) -> Tensor:
        """Cross-entropy, times the weight of the class."""
        plain = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
        if smoothing:
            plain = (1.0 - smoothing) * plain - smoothing * tf.reduce_mean(tf.nn.log_softmax(outputs), axis=1)
        return plain if weights is None else plain * tf.gather(tf.constant(weights), targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for a right answer."""
        return tf.cast(tf.equal(tf.argmax(outputs, axis=1), targets), tf.float32)


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each example has any number of labels: a sigmoid per label and the mean of their cross-entropies."""

    labels: tuple[str, ...]
    feature = "label"
    score = "exact_match"

    @property
    def outputs(self) -> int:
        """A logit per label."""
        return len(self.labels)

    @property
    def stored(self) -> Any:
        """Any number of label ids."""
        return tf.io.RaggedFeature(tf.int64)

    def target(self, stored: Tensor) -> Tensor:
        """1 where the example has the label, 0 elsewhere."""
        return tf.minimum(tf.reduce_sum(tf.one_hot(stored, len(self.labels)), axis=0), 1.0)

    def losses(self, outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0, weights: Weights = None) -> Tensor:
        """Cross-entropy, averaged over the labels; that of having a label times its weight."""
        smooth = targets * (1.0 - smoothing) + smoothing / 2.0
        having = 1.0 if weights is None else tf.constant(weights)
        return tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(smooth, outputs, having), axis=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for an example with all its labels and no other."""
        return tf.cast(tf.reduce_all(tf.equal(outputs > 0, targets > 0), axis=1), tf.float32)


@dataclass(frozen=True)
class Regression(Task):
    """Each example has `length` numbers: mean squared error."""

    length: int
    feature = "target"
    score = "mae"

    @property
    def outputs(self) -> int:
        """The numbers themselves."""
        return self.length

    @property
    def stored(self) -> Any:
        """The numbers."""
        return tf.io.FixedLenFeature([self.length], tf.float32)

    def losses(self, outputs: Tensor, targets: Tensor, *, smoothing: float = 0.0, weights: Weights = None) -> Tensor:
        """The squared error, averaged over the numbers; there is nothing to smooth or to weigh."""
        return tf.reduce_mean(tf.math.squared_difference(outputs, targets), axis=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The absolute error, averaged over the numbers."""
        return tf.reduce_mean(tf.abs(outputs - targets), axis=1)


def make_task(source: Source) -> Task:
    """The task that the dataset's labels set."""
    if source.label_kind == "regression":
        return Regression(source.targets)
    return (MultiLabel if source.label_kind == "multi" else SingleLabel)(source.labels)
