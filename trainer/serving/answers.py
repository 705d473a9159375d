"""What a served model answers, for each kind of label: tensors in its graph, plain values and words outside."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from trainer.learning.task import MultiLabel, Regression, SingleLabel, Task

Tensor = Any
Answer = dict[str, Any]
THRESHOLD = 0.5  # a label with a higher probability is given


class Answers(ABC):
    """The answers about one kind of label; `served` are the names of what `serve` gives."""

    served: ClassVar[tuple[str, ...]]

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
class OneClass(Answers):
    """The class of each example."""

    labels: tuple[str, ...]
    served = ("label", "probability", "probabilities", "classes")

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
class ManyLabels(Answers):
    """Any number of labels for each example."""

    labels: tuple[str, ...]
    served = ("probabilities", "classes")

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
class Numbers(Answers):
    """Numbers for each example."""

    served = ("prediction",)

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


def make_answers(task: Task) -> Answers:
    """What a model that learnt `task` answers."""
    match task:
        case SingleLabel(labels):
            return OneClass(labels)
        case MultiLabel(labels):
            return ManyLabels(labels)
        case Regression():
            return Numbers()
    raise TypeError(f"no answers for {task}")


def find_answers(served: Collection[str]) -> type[Answers] | None:
    """The kind of answers that has these names; None when no model of ours does."""
    kinds: tuple[type[Answers], ...] = (OneClass, ManyLabels, Numbers)
    return next((kind for kind in kinds if set(kind.served) == set(served)), None)


def _for_each(labels: tuple[str, ...], outputs: Tensor) -> Tensor:
    """The labels once per example, because serving systems split answers along the first axis."""
    return tf.tile(tf.constant(labels)[tf.newaxis], [tf.shape(outputs)[0], 1])


def _probabilities(row: dict[str, Any]) -> dict[str, float]:
    values = np.round(row["probabilities"].astype(float), 6).tolist()
    return dict(zip([label.decode() for label in row["classes"]], values, strict=True))
