"""How well each class or label is told from the others, and means over them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

LONGEST_TABLE = 20


@dataclass(frozen=True)
class LabelCount:
    """How many examples have a label, how many were given it, and how many of these rightly.

    `average_precision` is for labels that an example can have several of, and None where no example has the label.
    """

    label: str
    examples: int
    given: int
    correct: int
    average_precision: float | None = None

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

    @property
    def seen(self) -> bool:
        """Whether there is anything to judge by."""
        return self.examples + self.given > 0

    def as_dict(self) -> dict[str, Any]:
        """Counts and shares."""
        counts = {name: value for name, value in asdict(self).items() if value is not None}
        return counts | {name: getattr(self, name) for name in ("precision", "recall", "f1")}

    def row(self) -> list[str]:
        """Counts and shares, for a table."""
        counts = [f"{count:,}" for count in (self.examples, self.given, self.correct)]
        return [self.label, *counts, *(f"{value:.4f}" for value in (self.precision, self.recall, self.f1))]


HEADER = ["examples", "given", "correct", "precision", "recall", "f1"]


def macro(counts: Sequence[LabelCount]) -> dict[str, float]:
    """Precision, recall and F1 averaged over the labels that examples have or were given."""
    seen = [each for each in counts if each.seen]
    return {name: mean([getattr(each, name) for each in seen]) for name in ("precision", "recall", "f1")}


def weighted(counts: Sequence[LabelCount]) -> dict[str, float]:
    """The same, each label as often as examples have it."""
    total = sum(each.examples for each in counts)
    return {
        name: sum(getattr(each, name) * each.examples for each in counts) / total
        for name in ("precision", "recall", "f1")
    }


def micro(counts: Sequence[LabelCount]) -> LabelCount:
    """All decisions about all labels counted together."""
    columns = zip(*((each.examples, each.given, each.correct) for each in counts), strict=True)
    return LabelCount("", *map(sum, columns))


def worst_labels(counts: Sequence[LabelCount]) -> list[LabelCount]:
    """All of them, or if there are many those with the lowest F1, the lowest first."""
    if len(counts) <= LONGEST_TABLE:
        return list(counts)
    return sorted((each for each in counts if each.seen), key=lambda each: each.f1)[:LONGEST_TABLE]


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
