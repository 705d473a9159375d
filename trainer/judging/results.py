"""What an evaluation found: one frozen value per kind of label, without TensorFlow."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Evaluation(ABC):
    """The result of one pass over a split."""

    split: str
    step: int
    examples: int
    loss: float

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The numbers that judge the model, the most telling first."""

    @abstractmethod
    def table(self) -> list[list[str]]:
        """The result in detail, for a person: a header and its rows."""

    @property
    def counted(self) -> str:
        """What the metrics were counted from."""
        return f"{self.examples} examples"

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values for JSON."""
        return {**asdict(self), **self.metrics}


@dataclass(frozen=True)
class ClassCount:
    """How many examples of a class there are, and how many were recognised."""

    label: str
    examples: int
    correct: int


@dataclass(frozen=True, kw_only=True)
class Classified(Evaluation):
    """Right answers where each example has one class."""

    correct: int
    classes: tuple[ClassCount, ...]

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.correct / self.examples

    @property
    def metrics(self) -> dict[str, float]:
        """The accuracy."""
        return {"accuracy": self.accuracy}

    @property
    def counted(self) -> str:
        """Right answers among all."""
        return f"{self.correct} of {self.examples}"

    def table(self) -> list[list[str]]:
        """A row per class."""
        rows = [[each.label, f"{each.examples:,}", f"{each.correct:,}", _share(each)] for each in self.classes]
        return [["class", "examples", "correct", "accuracy"], *rows]


def _share(count: ClassCount) -> str:
    return f"{count.correct / count.examples:.4f}" if count.examples else "-"


@dataclass(frozen=True)
class LabelCount:
    """How many examples have a label, how many were given it, and how many of these rightly."""

    label: str
    examples: int
    given: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of the given that is right."""
        return _ratio(self.correct, self.given)

    @property
    def recall(self) -> float:
        """The share of the examples that was found."""
        return _ratio(self.correct, self.examples)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _ratio(2 * self.correct, self.examples + self.given)


@dataclass(frozen=True, kw_only=True)
class Labelled(Evaluation):
    """Labels given and missed where each example has any number of them; `exact` examples got all of theirs right."""

    exact: int
    labels: tuple[LabelCount, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """Precision, recall and F1 over all decisions of all labels, and the share of examples without a mistake."""
        counts = [(each.examples, each.given, each.correct) for each in self.labels]
        total = LabelCount("", *(sum(column) for column in zip(*counts, strict=True)))
        exact = self.exact / self.examples
        return {"f1": total.f1, "precision": total.precision, "recall": total.recall, "exact_match": exact}

    def table(self) -> list[list[str]]:
        """A row per label."""
        header = ["label", "examples", "given", "correct", "precision", "recall", "f1"]
        return [header, *(_label_row(each) for each in self.labels)]


def _label_row(each: LabelCount) -> list[str]:
    counts = [f"{count:,}" for count in (each.examples, each.given, each.correct)]
    return [each.label, *counts, *(f"{value:.4f}" for value in (each.precision, each.recall, each.f1))]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, kw_only=True)
class Measured(Evaluation):
    """The mean absolute error of each number that was predicted; the loss is the mean squared one."""

    errors: tuple[float, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """The mean absolute error over all numbers."""
        return {"mae": sum(self.errors) / len(self.errors)}

    def table(self) -> list[list[str]]:
        """A row per number."""
        return [["target", "mae"], *([str(number), f"{error:.4f}"] for number, error in enumerate(self.errors))]
