"""Counting what a model said about examples, for each kind of label, and what the counts amount to; NumPy alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from trainer.judging.labels import LabelCount
from trainer.judging.multiset import Multiset, score_keys
from trainer.judging.ranking import average_precisions
from trainer.judging.results import (
    Bin,
    Classified,
    Confusion,
    Evaluation,
    Labelled,
    Measured,
    TargetError,
)
from trainer.judging.tally import Floats, Mistake, Tally, merge
from trainer.reading.source import Source

SCORES = 2**22  # different ones are kept; beyond that, those that differ only in their last bits count as equal
BINS = 15  # of confidence, for the calibration
TOP = 5


@dataclass(frozen=True)
class Seen:
    """The examples of a batch that count: what the network gave for each, what was true, and their ordinals."""

    number: int  # of the batch in the split
    outputs: npt.NDArray[np.float32]
    targets: npt.NDArray[Any]
    ordinals: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Judge(ABC):
    """Judges one kind of label; keeps the `worst` mistakes."""

    most_codes: ClassVar[int | None] = None
    worst: int = 0

    @abstractmethod
    def count(self, seen: Seen) -> Tally:
        """What there is to count in a batch."""

    @abstractmethod
    def summarise(self, tally: Tally, **facts: Any) -> Evaluation:
        """The result that the tally of a split amounts to; `facts` are those that every result has."""

    def merge(self, tallies: Sequence[Tally]) -> Tally:
        """The tally of all batches together."""
        return merge(tallies, worst=self.worst, codes=self.most_codes)

    def _worst(self, seen: Seen, losses: Floats, wrong: npt.NDArray[np.bool_]) -> list[int]:
        """The positions of the worst mistakes in a batch."""
        ranked = sorted(np.flatnonzero(wrong).tolist(), key=lambda at: _mistake(seen, losses, at).rank)
        return ranked[: self.worst]


@dataclass(frozen=True, kw_only=True)
class SingleJudge(Judge):
    """Each example has one class."""

    labels: tuple[str, ...]

    def count(self, seen: Seen) -> Tally:
        """Confusions, how sure the model was, and whether the class was among the first few."""
        likely = _log_softmax(seen.outputs)
        rows, targets = np.arange(len(likely)), seen.targets.astype(np.int64)
        losses, given = -likely[rows, targets], seen.outputs.argmax(axis=1)
        confidence, right = np.nan_to_num(np.exp(likely[rows, given])), given == targets
        bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
        return Tally(
            counts={
                "top": np.sum(_ranks(seen.outputs, targets) < TOP, keepdims=True),
                "bins": np.bincount(bins, minlength=BINS),
                "right": np.bincount(bins[right], minlength=BINS),
            },
            sums={seen.number: np.append(np.bincount(bins, confidence, minlength=BINS), losses.sum())},
            codes=Multiset.of(targets * len(self.labels) + given),
            worst=tuple(
                _mistake(seen, losses, at, true=self.labels[targets[at]], given=self.labels[given[at]],
                         probability=float(confidence[at]))
                for at in self._worst(seen, losses, ~right)
            ),
        )  # fmt: skip

    def summarise(self, tally: Tally, **facts: Any) -> Classified:
        """Counts per class, confusions and calibration."""
        classes = len(self.labels)
        true, given = (part.astype(np.int64) for part in np.divmod(tally.codes.codes, np.uint64(classes)))
        columns = [
            _sum_by(index, tally.codes.counts * chosen, classes)
            for index, chosen in ((true, 1), (given, 1), (true, true == given))
        ]
        *confidence, loss = tally.total.tolist()
        bins = zip(tally.counts["bins"].tolist(), tally.counts["right"].tolist(), confidence, strict=True)
        cells = zip(true.tolist(), given.tolist(), tally.codes.counts.tolist(), strict=True)
        return Classified(
            **facts,
            examples=tally.codes.total,
            loss=loss / tally.codes.total,
            classes=tuple(LabelCount(*row) for row in zip(self.labels, *columns, strict=True)),
            among_top=int(tally.counts["top"][0]) if classes > TOP else None,
            confusions=tuple(Confusion(self.labels[t], self.labels[g], count) for t, g, count in cells),
            bins=tuple(Bin(at / BINS, (at + 1) / BINS, *row) for at, row in enumerate(bins)),
            mistakes=tally.worst,
        )


@dataclass(frozen=True, kw_only=True)
class MultiJudge(Judge):
    """Each example has any number of labels; one is given when its probability is above a half."""

    most_codes = SCORES
    labels: tuple[str, ...]

    def count(self, seen: Seen) -> Tally:
        """Decisions and scores per label."""
        outputs, true = seen.outputs.astype(np.float64), seen.targets > 0
        given = outputs > 0  # a logit of 0 is a probability of a half
        losses = (np.maximum(outputs, 0) - outputs * true + np.log1p(np.exp(-np.abs(outputs)))).mean(axis=1)
        exact = (given == true).all(axis=1)
        numbers = np.arange(len(self.labels), dtype=np.uint64) << np.uint64(33)
        codes = numbers | true.astype(np.uint64) << np.uint64(32) | score_keys(seen.outputs)
        return Tally(
            counts={
                "examples": np.array([len(true)]),
                "exact": exact.sum(keepdims=True),
                "labels": np.stack([part.sum(axis=0) for part in (true, given, true & given)]),
            },
            sums={seen.number: losses.sum(keepdims=True)},
            codes=Multiset.of(codes.ravel()),
            worst=tuple(
                _mistake(seen, losses, at, true=self._named(true[at]), given=self._named(given[at]),
                         probabilities=self._probabilities(outputs[at], true[at] | given[at]))
                for at in self._worst(seen, losses, ~exact)
            ),
        )  # fmt: skip

    def _named(self, has: npt.NDArray[np.bool_]) -> list[str]:
        return [label for label, one in zip(self.labels, has, strict=True) if one]

    def _probabilities(self, logits: Floats, chosen: npt.NDArray[np.bool_]) -> dict[str, float]:
        """Of the labels that were true or given: all of them would be too many."""
        return {self.labels[at]: float(1 / (1 + np.exp(-logits[at]))) for at in np.flatnonzero(chosen)}

    def summarise(self, tally: Tally, **facts: Any) -> Labelled:
        """Counts and average precision per label."""
        examples = int(tally.counts["examples"][0])
        precisions = average_precisions(tally.codes, len(self.labels))
        columns = (*tally.counts["labels"].tolist(), precisions)
        return Labelled(
            **facts,
            examples=examples,
            loss=float(tally.total[0]) / examples,
            exact=int(tally.counts["exact"][0]),
            labels=tuple(LabelCount(*row) for row in zip(self.labels, *columns, strict=True)),
            rounded_bits=tally.codes.dropped,
            mistakes=tally.worst,
        )


@dataclass(frozen=True, kw_only=True)
class RegressionJudge(Judge):
    """Each example has `length` numbers."""

    length: int

    def count(self, seen: Seen) -> Tally:
        """Errors per number, and how far the true numbers lie from their mean."""
        outputs, targets = seen.outputs.astype(np.float64), seen.targets.astype(np.float64)
        errors = outputs - targets
        losses = np.square(errors).mean(axis=1)
        spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
        columns = (np.abs(errors).sum(axis=0), np.square(errors).sum(axis=0), targets.sum(axis=0), spread)
        return Tally(
            counts={"examples": np.array([len(errors)])},
            sums={seen.number: np.concatenate([[len(errors), losses.sum()], *columns])},
            worst=tuple(
                _mistake(seen, losses, at, true=targets[at].tolist(), given=outputs[at].tolist())
                for at in self._worst(seen, losses, losses > 0)
            ),
        )

    def summarise(self, tally: Tally, **facts: Any) -> Measured:
        """Errors per number; R2 is 1 minus the squared error over the squared distance from the mean."""
        examples, by_batch = int(tally.counts["examples"][0]), tally.by_batch
        loss, (absolute, squared, summed, spread) = tally.total[1], np.split(tally.total[2:], 4)
        sizes, sums = by_batch[:, :1], np.split(by_batch[:, 2:], 4, axis=1)[2]
        spread = spread + (sizes * np.square(sums / sizes - summed / examples)).sum(axis=0)
        columns = (absolute / examples, np.sqrt(squared / examples), _r2(squared, spread))
        return Measured(
            **facts,
            examples=examples,
            loss=float(loss) / examples,
            targets=tuple(TargetError(*row) for row in np.stack(columns, axis=1).tolist()),
            mistakes=tally.worst,
        )


def make_judge(source: Source, *, worst: int) -> Judge:
    """The judge for the dataset's labels, who keeps so many of the worst mistakes."""
    if source.label_kind == "regression":
        return RegressionJudge(length=source.targets, worst=worst)
    return (MultiJudge if source.label_kind == "multi" else SingleJudge)(labels=source.labels, worst=worst)


def metric_names(source: Source) -> tuple[str, ...]:
    """The names of the metrics that an evaluation gives, the most telling first, and `loss`."""
    outputs = np.zeros((1, source.targets if source.label_kind == "regression" else len(source.labels)), np.float32)
    targets = np.zeros(1, np.int64) if source.label_kind == "single" else outputs
    judge = make_judge(source, worst=0)
    likeness = judge.count(Seen(number=0, outputs=outputs, targets=targets, ordinals=np.zeros(1, np.int64)))
    return (*judge.summarise(likeness, split="", step=0).metrics, "loss")


def _log_softmax(outputs: npt.NDArray[np.float32]) -> Floats:
    shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _ranks(outputs: npt.NDArray[np.float32], targets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many classes come before the true one; of equal ones the first comes first, as in argmax."""
    own = np.take_along_axis(outputs, targets[:, np.newaxis], axis=1)
    earlier = np.arange(outputs.shape[1]) < targets[:, np.newaxis]
    return np.sum((outputs > own) | ((outputs == own) & earlier), axis=1)


def _mistake(seen: Seen, losses: Floats, at: int, **about: Any) -> Mistake:
    return Mistake(float(losses[at]), int(seen.ordinals[at]), about)


def _sum_by(index: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], length: int) -> list[int]:
    summed = np.zeros(length, np.int64)
    np.add.at(summed, index, counts)
    return summed.tolist()


def _r2(squared: Floats, spread: Floats) -> Floats:
    """Where all true numbers are the same: 1 if they were met, else 0."""
    safe = np.where(spread > 0, spread, 1.0)
    return np.where(spread > 0, 1 - squared / safe, np.where(squared > 0, 0.0, 1.0))
