"""Counts over a split: for each kind of label, the numbers whose sums are all that a result needs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainer.judging.results import ClassCount, Classified, Evaluation, LabelCount, Labelled, Measured
from trainer.learning.task import MultiLabel, Regression, SingleLabel, Task

Tensor = Any
Sums = npt.NDArray[np.float64]


class Tally(ABC):
    """What is counted for one kind of label."""

    task: Task

    @abstractmethod
    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n, k] numbers whose sums over a split, followed by the summed loss, are all that `summarise` needs."""

    def sums(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The summed counts and loss of a batch; float64 holds counts exactly up to 2**53."""
        losses = self.task.losses(outputs, targets)[:, tf.newaxis]
        columns = tf.concat([tf.cast(part, tf.float64) for part in (self.counts(outputs, targets), losses)], axis=1)
        return tf.linalg.matvec(columns, tf.cast(weights, tf.float64), transpose_a=True)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers `sums` gives."""

    @abstractmethod
    def summarise(self, sums: Sums, *, split: str, step: int) -> Evaluation:
        """The result that the sums over a whole split amount to."""


@dataclass(frozen=True)
class SingleTally(Tally):
    """Right answers per class."""

    task: SingleLabel

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The example and its right answer, each in the column of its class."""
        classes = tf.one_hot(targets, len(self.task.labels))
        return tf.concat([classes, classes * self.task.scores(outputs, targets)[:, tf.newaxis]], axis=1)

    @property
    def width(self) -> int:
        """Examples and right answers per class, and the loss."""
        return 2 * len(self.task.labels) + 1

    def summarise(self, sums: Sums, *, split: str, step: int) -> Classified:
        """Counts per class."""
        examples, correct = (part.astype(int).tolist() for part in np.split(sums[:-1], 2))
        return Classified(
            split=split,
            step=step,
            examples=sum(examples),
            correct=sum(correct),
            loss=float(sums[-1]) / sum(examples),
            classes=tuple(ClassCount(*row) for row in zip(self.task.labels, examples, correct, strict=True)),
        )


@dataclass(frozen=True)
class MultiTally(Tally):
    """Decisions per label."""

    task: MultiLabel

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Per label: has it, was given it, both; then whether all is right, and 1 for the example."""
        given = tf.cast(outputs > 0, tf.float32)  # a logit of 0 is a probability of a half
        exact = self.task.scores(outputs, targets)[:, tf.newaxis]
        return tf.concat([targets, given, targets * given, exact, tf.ones_like(exact)], axis=1)

    @property
    def width(self) -> int:
        """Three counts per label, two per example, and the loss."""
        return 3 * len(self.task.labels) + 3

    def summarise(self, sums: Sums, *, split: str, step: int) -> Labelled:
        """Counts per label."""
        columns = (part.astype(int).tolist() for part in np.split(sums[:-3], 3))
        examples = int(sums[-2])
        return Labelled(
            split=split,
            step=step,
            examples=examples,
            exact=int(sums[-3]),
            loss=float(sums[-1]) / examples,
            labels=tuple(LabelCount(*row) for row in zip(self.task.labels, *columns, strict=True)),
        )


@dataclass(frozen=True)
class RegressionTally(Tally):
    """Errors per number."""

    task: Regression

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The absolute error of each number, and 1 for the example."""
        return tf.concat([tf.abs(outputs - targets), tf.ones_like(outputs[:, :1])], axis=1)

    @property
    def width(self) -> int:
        """An error per number, the examples and the loss."""
        return self.task.length + 2

    def summarise(self, sums: Sums, *, split: str, step: int) -> Measured:
        """Mean errors."""
        examples = int(sums[-2])
        return Measured(
            split=split,
            step=step,
            examples=examples,
            loss=float(sums[-1]) / examples,
            errors=tuple((sums[:-2] / examples).tolist()),
        )


def make_tally(task: Task) -> Tally:
    """What is counted to judge a model that learnt `task`."""
    match task:
        case SingleLabel():
            return SingleTally(task)
        case MultiLabel():
            return MultiTally(task)
        case Regression():
            return RegressionTally(task)
    raise TypeError(f"no tally for {task}")
