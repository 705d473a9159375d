"""What is learnt: for each kind of label its loss, its counts and what a served model answers.

A network gives `outputs` numbers per example; everything that these numbers mean is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainer.judging.results import ClassCount, Classified, Evaluation, LabelCount, Labelled, Measured
from trainer.reading.source import Source

Tensor = Any
Answer = dict[str, Any]
Sums = npt.NDArray[np.float64]
THRESHOLD = 0.5  # a label with a higher probability is given


class Task(ABC):
    """One kind of label. `feature` is its name in the records, `score` what training reports beside the loss."""

    feature: ClassVar[str]
    score: ClassVar[str]
    served: ClassVar[tuple[str, ...]]  # the names of what `serve` gives

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
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example."""

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The `score` of each example."""

    @abstractmethod
    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n, k] numbers whose sums over a split, followed by the summed loss, are all that `summarise` needs."""

    def sums(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The summed counts and loss of a batch; float64 holds counts exactly up to 2**53."""
        losses = self.losses(outputs, targets)[:, tf.newaxis]
        columns = tf.concat([tf.cast(part, tf.float64) for part in (self.counts(outputs, targets), losses)], axis=1)
        return tf.linalg.matvec(columns, tf.cast(weights, tf.float64), transpose_a=True)

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers `sums` gives."""

    @abstractmethod
    def summarise(self, sums: Sums, *, split: str, step: int) -> Evaluation:
        """The result that the sums over a whole split amount to."""

    @abstractmethod
    def serve(self, outputs: Tensor) -> dict[str, Tensor]:
        """What a served model answers, the examples along the first axis."""

    @staticmethod
    @abstractmethod
    def answer(row: dict[str, Any]) -> Answer:
        """One example's part of what `serve` gave, as plain values for JSON."""

    @staticmethod
    @abstractmethod
    def summary(answer: Answer) -> dict[str, str]:
        """An answer in a few words, by the heading of their column."""


@dataclass(frozen=True)
class SingleLabel(Task):
    """Each example has one class: softmax and its cross-entropy."""

    labels: tuple[str, ...]
    feature = "label"
    score = "accuracy"
    served = ("label", "probability", "probabilities", "classes")

    @property
    def outputs(self) -> int:
        """A logit per class."""
        return len(self.labels)

    @property
    def stored(self) -> Any:
        """The class id."""
        return tf.io.FixedLenFeature([], tf.int64)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for a right answer."""
        return tf.cast(tf.equal(tf.argmax(outputs, axis=1), targets), tf.float32)

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The example and its right answer, each in the column of its class."""
        classes = tf.one_hot(targets, len(self.labels))
        return tf.concat([classes, classes * self.scores(outputs, targets)[:, tf.newaxis]], axis=1)

    @property
    def width(self) -> int:
        """Examples and right answers per class, and the loss."""
        return 2 * len(self.labels) + 1

    def summarise(self, sums: Sums, *, split: str, step: int) -> Classified:
        """Counts per class."""
        examples, correct = (part.astype(int).tolist() for part in np.split(sums[:-1], 2))
        return Classified(
            split=split,
            step=step,
            examples=sum(examples),
            correct=sum(correct),
            loss=float(sums[-1]) / sum(examples),
            classes=tuple(ClassCount(*row) for row in zip(self.labels, examples, correct, strict=True)),
        )

    def serve(self, outputs: Tensor) -> dict[str, Tensor]:
        """The most likely class, its probability, and all classes with theirs."""
        probabilities = tf.nn.softmax(outputs)
        return {
            "label": tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=1)),
            "probability": tf.reduce_max(probabilities, axis=1),
            "probabilities": probabilities,
            "classes": _for_each(self.labels, outputs),
        }

    @staticmethod
    def answer(row: dict[str, Any]) -> Answer:
        """The class and all probabilities."""
        return {
            "label": row["label"].decode(),
            "probability": round(float(row["probability"]), 6),
            "probabilities": _probabilities(row),
        }

    @staticmethod
    def summary(answer: Answer) -> dict[str, str]:
        """The class and its probability."""
        return {"class": answer["label"], "probability": f"{answer['probability']:.4f}"}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Each example has any number of labels: a sigmoid per label and the mean of their cross-entropies."""

    labels: tuple[str, ...]
    feature = "label"
    score = "exact_match"
    served = ("probabilities", "classes")

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

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, averaged over the labels."""
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, outputs), axis=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for an example with all its labels and no other."""
        return tf.cast(tf.reduce_all(tf.equal(outputs > 0, targets > 0), axis=1), tf.float32)

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Per label: has it, was given it, both; then whether all is right, and 1 for the example."""
        given = tf.cast(outputs > 0, tf.float32)  # a logit of 0 is a probability of a half
        exact = self.scores(outputs, targets)[:, tf.newaxis]
        return tf.concat([targets, given, targets * given, exact, tf.ones_like(exact)], axis=1)

    @property
    def width(self) -> int:
        """Three counts per label, two per example, and the loss."""
        return 3 * len(self.labels) + 3

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
            labels=tuple(LabelCount(*row) for row in zip(self.labels, *columns, strict=True)),
        )

    def serve(self, outputs: Tensor) -> dict[str, Tensor]:
        """All labels with their probabilities."""
        return {"probabilities": tf.nn.sigmoid(outputs), "classes": _for_each(self.labels, outputs)}

    @staticmethod
    def answer(row: dict[str, Any]) -> Answer:
        """The labels that are more likely than not, and all probabilities."""
        probabilities = _probabilities(row)
        return {
            "labels": [label for label, value in probabilities.items() if value > THRESHOLD],
            "probabilities": probabilities,
        }

    @staticmethod
    def summary(answer: Answer) -> dict[str, str]:
        """The given labels with their probabilities."""
        given = [f"{label} {answer['probabilities'][label]:.4f}" for label in answer["labels"]]
        return {"labels": ", ".join(given) or "-"}


@dataclass(frozen=True)
class Regression(Task):
    """Each example has `length` numbers: mean squared error."""

    length: int
    feature = "target"
    score = "mae"
    served = ("prediction",)

    @property
    def outputs(self) -> int:
        """The numbers themselves."""
        return self.length

    @property
    def stored(self) -> Any:
        """The numbers."""
        return tf.io.FixedLenFeature([self.length], tf.float32)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error, averaged over the numbers."""
        return tf.reduce_mean(tf.math.squared_difference(outputs, targets), axis=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The absolute error, averaged over the numbers."""
        return tf.reduce_mean(tf.abs(outputs - targets), axis=1)

    def counts(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The absolute error of each number, and 1 for the example."""
        return tf.concat([tf.abs(outputs - targets), tf.ones_like(outputs[:, :1])], axis=1)

    @property
    def width(self) -> int:
        """An error per number, the examples and the loss."""
        return self.length + 2

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

    def serve(self, outputs: Tensor) -> dict[str, Tensor]:
        """The numbers."""
        return {"prediction": tf.identity(outputs)}

    @staticmethod
    def answer(row: dict[str, Any]) -> Answer:
        """The numbers."""
        return {"prediction": [float(f"{value:.7g}") for value in row["prediction"]]}

    @staticmethod
    def summary(answer: Answer) -> dict[str, str]:
        """The numbers."""
        return {"prediction": ", ".join(f"{value:.5g}" for value in answer["prediction"])}


def make_task(source: Source) -> Task:
    """The task that the dataset's labels set."""
    if source.label_kind == "regression":
        return Regression(source.targets)
    return (MultiLabel if source.label_kind == "multi" else SingleLabel)(source.labels)


def find_task(served: Collection[str]) -> type[Task] | None:
    """The kind of task whose model gives these outputs; None when no model of ours does."""
    kinds: tuple[type[Task], ...] = (SingleLabel, MultiLabel, Regression)
    return next((kind for kind in kinds if set(kind.served) == set(served)), None)


def _for_each(labels: tuple[str, ...], outputs: Tensor) -> Tensor:
    """The labels once per example, because serving systems split answers along the first axis."""
    return tf.tile(tf.constant(labels)[tf.newaxis], [tf.shape(outputs)[0], 1])


def _probabilities(row: dict[str, Any]) -> dict[str, float]:
    values = np.round(row["probabilities"].astype(float), 6).tolist()
    return dict(zip([label.decode() for label in row["classes"]], values, strict=True))
