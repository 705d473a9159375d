"""What an evaluation found: one frozen value per kind of label, without TensorFlow."""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainer.judging.labels import HEADER, LONGEST_TABLE, LabelCount, macro, mean, micro, weighted, worst_labels
from trainer.judging.tally import Mistake

BETTER: dict[str, Literal["higher", "lower"]] = {
    "loss": "lower",
    "accuracy": "higher",
    "top5_accuracy": "higher",
    "macro_f1": "higher",
    "ece": "lower",
    "f1": "higher",
    "precision": "higher",
    "recall": "higher",
    "map": "higher",
    "exact_match": "higher",
    "mae": "lower",
    "rmse": "lower",
    "r2": "higher",
}


@dataclass(frozen=True, kw_only=True)
class Evaluation(ABC):
    """The result of one pass over a split; `skipped` records could not be read. `mistakes` are the worst ones."""

    split: str
    step: int
    examples: int
    loss: float
    skipped: int = 0
    mistakes: tuple[Mistake, ...] = ()

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The numbers that judge the model, the most telling first; `BETTER` tells which way is better."""

    @abstractmethod
    def table(self) -> list[list[str]]:
        """The result in detail, for a person: a header and its rows, at most `LONGEST_TABLE` of them."""

    @property
    def left_out(self) -> int:
        """How many rows the table has no room for."""
        return 0

    @property
    def counted(self) -> str:
        """What the metrics were counted from."""
        return f"{self.examples} examples" + self._without_skipped

    @property
    def _without_skipped(self) -> str:
        return f", {self.skipped} skipped as damaged" if self.skipped else ""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What there is beside the metrics, as plain values."""

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values for JSON; a number that is none is null."""
        facts = {"split": self.split, "step": self.step, "examples": self.examples, "skipped": self.skipped}
        numbers = {"loss": self.loss} | self.metrics
        return facts | {name: _finite(value) for name, value in numbers.items()} | self.details()


@dataclass(frozen=True)
class Confusion:
    """How many examples of the class `true` were given the class `given`, rightly if they are the same."""

    true: str
    given: str
    examples: int


@dataclass(frozen=True)
class Bin:
    """The examples whose class was given with a probability above `low` and up to `high`.

    `confidence` is the sum of these probabilities.
    """

    low: float
    high: float
    examples: int
    correct: int
    confidence: float

    @property
    def gap(self) -> float:
        """How far the mean probability is from the share of right answers."""
        return abs(self.confidence - self.correct) / self.examples if self.examples else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Counts and means."""
        means = {"confidence": self.confidence / self.examples, "accuracy": self.correct / self.examples} \
            if self.examples else {}  # fmt: skip
        return {"from": self.low, "to": self.high, "examples": self.examples, "correct": self.correct} | means


@dataclass(frozen=True, kw_only=True)
class Classified(Evaluation):
    """Right answers where each example has one class; `among_top` had theirs among the five most likely."""

    classes: tuple[LabelCount, ...]
    confusions: tuple[Confusion, ...] = ()
    bins: tuple[Bin, ...] = ()
    among_top: int | None = None

    @property
    def correct(self) -> int:
        """How many answers are right."""
        return sum(each.correct for each in self.classes)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.correct / self.examples

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy, F1 averaged over the classes, and the expected calibration error."""
        top = {} if self.among_top is None else {"top5_accuracy": self.among_top / self.examples}
        ece = sum(each.gap * each.examples for each in self.bins) / self.examples
        return {"accuracy": self.accuracy, **top, "macro_f1": macro(self.classes)["f1"], "ece": ece}

    @property
    def counted(self) -> str:
        """Right answers among all."""
        return f"{self.correct} of {self.examples}{self._without_skipped}"

    @property
    def left_out(self) -> int:
        """Classes without a row."""
        return len(self.classes) - len(worst_labels(self.classes))

    def table(self) -> list[list[str]]:
        """A row per class."""
        return [["class", *HEADER], *(each.row() for each in worst_labels(self.classes))]

    def details(self) -> dict[str, Any]:
        """Means, counts per class, non-zero cells of the confusion matrix, and calibration."""
        return {
            "correct": self.correct,
            "macro": macro(self.classes),
            "weighted": weighted(self.classes),
            "classes": [each.as_dict() for each in self.classes],
            "confusions": [asdict(each) for each in self.confusions],
            "calibration": [each.as_dict() for each in self.bins],
        }


@dataclass(frozen=True, kw_only=True)
class Labelled(Evaluation):
    """Labels given and missed where each example has any number of them; `exact` examples got all of theirs right.

    `rounded_bits` is 0 unless there were so many different scores that the last bits of each were left out of account.
    """

    exact: int
    labels: tuple[LabelCount, ...]
    rounded_bits: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """F1, precision and recall over all decisions of all labels; mean average precision; examples all right."""
        total = micro(self.labels)
        ranked = [each.average_precision for each in self.labels if each.average_precision is not None]
        return {
            "f1": total.f1,
            "precision": total.precision,
            "recall": total.recall,
            "macro_f1": macro(self.labels)["f1"],
            "map": mean(ranked),
            "exact_match": self.exact / self.examples,
        }

    @property
    def left_out(self) -> int:
        """Labels without a row."""
        return len(self.labels) - len(worst_labels(self.labels))

    def table(self) -> list[list[str]]:
        """A row per label."""
        rows = ([*each.row(), _shown(each.average_precision)] for each in worst_labels(self.labels))
        return [["label", *HEADER, "average precision"], *rows]

    def details(self) -> dict[str, Any]:
        """Means and counts per label."""
        return {
            "exact": self.exact,
            "macro": macro(self.labels),
            "labels": [each.as_dict() for each in self.labels],
            "rounded_bits": self.rounded_bits,
        }


@dataclass(frozen=True)
class TargetError:
    """How far predictions of one number are off: mean absolute error, root of the mean square, share explained."""

    mae: float
    rmse: float
    r2: float


@dataclass(frozen=True, kw_only=True)
class Measured(Evaluation):
    """The errors of each number that was predicted; the loss is the mean squared error."""

    targets: tuple[TargetError, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """The means over all numbers; the root is that of the mean square over all of them."""
        return {
            "mae": mean([each.mae for each in self.targets]),
            "rmse": math.sqrt(mean([each.rmse**2 for each in self.targets])),
            "r2": mean([each.r2 for each in self.targets]),
        }

    @property
    def left_out(self) -> int:
        """Numbers without a row."""
        return max(0, len(self.targets) - LONGEST_TABLE)

    def table(self) -> list[list[str]]:
        """A row per number, those that are explained worst if there are many."""
        numbered = list(enumerate(self.targets))
        if self.left_out:
            numbered = sorted(numbered, key=lambda pair: pair[1].r2)[:LONGEST_TABLE]
        rows = ([str(number), *(f"{value:.4f}" for value in asdict(each).values())] for number, each in numbered)
        return [["target", "mae", "rmse", "r2"], *rows]

    def details(self) -> dict[str, Any]:
        """Errors per number."""
        return {"targets": [{name: _finite(value) for name, value in asdict(each).items()} for each in self.targets]}


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
