"""Counts right answers over a split: each example exactly once, on any number of workers."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainer.config import TrainConfig
from trainer.dataset import evaluation_dataset, evaluation_steps
from trainer.source import Source
from trainer.state import State, build_state, find_checkpoint, restore
from trainer.strategy import Workplace

Tensor = Any


@dataclass(frozen=True)
class ClassCount:
    """How many examples of a class there are, and how many were recognised."""

    label: str
    examples: int
    correct: int


@dataclass(frozen=True)
class Evaluation:
    """The result over one split."""

    split: str
    step: int
    examples: int
    correct: int
    loss: float
    classes: tuple[ClassCount, ...]

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.correct / self.examples

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values for JSON."""
        return {**asdict(self), "accuracy": self.accuracy}


class Evaluator:
    """Evaluates a model on one split as often as asked, over one long-lived iterator."""

    def __init__(self, config: TrainConfig, source: Source, workplace: Workplace, *, state: State, split: str) -> None:
        """Prepares the input; reading starts with the first `evaluate`."""
        self._strategy, self._state, self._split = workplace.strategy, state, split
        self._labels = source.labels
        self._steps = evaluation_steps(config, source.split(split))
        self._iterator = workplace.distribute(
            lambda share: evaluation_dataset(config, source, share, split=split), global_batch=config.global_batch
        )

    def evaluate(self, step: int) -> Evaluation:
        """One pass over the split with the weights as they are after `step`."""
        sums = self._one_pass(tf.constant(self._steps)).numpy()
        return summarise(sums, self._labels, split=self._split, step=step)

    @tf.function
    def _one_pass(self, steps: Tensor) -> Tensor:
        width = len(self._labels)
        sums = tf.zeros([2 * width + 1], tf.float64)
        for _ in tf.range(steps):
            counted = self._strategy.run(self._count, args=(next(self._iterator),))
            sums += self._strategy.reduce(tf.distribute.ReduceOp.SUM, counted, axis=None)
        return sums

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and rewriting the network's code takes long
    def _count(self, batch: dict[str, Tensor]) -> Tensor:
        """[examples per class, right answers per class, summed loss]; float64 holds counts exactly up to 2**53."""
        logits = self._state.logits(batch["image"], training=False)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        weight = tf.cast(batch["weight"], tf.float64)
        right = tf.cast(tf.equal(tf.argmax(logits, axis=1), batch["label"]), tf.float64)
        classes = tf.one_hot(batch["label"], len(self._labels), dtype=tf.float64)
        per_class = tf.linalg.matvec(classes, weight, transpose_a=True)
        right_per_class = tf.linalg.matvec(classes, weight * right, transpose_a=True)
        return tf.concat([per_class, right_per_class, [tf.reduce_sum(tf.cast(loss, tf.float64) * weight)]], axis=0)


def evaluate_checkpoint(
    config: TrainConfig, source: Source, workplace: Workplace, *, split: str, checkpoint: str | None
) -> tuple[str, Evaluation]:
    """Judges a checkpoint (the newest by default) on a split; returns which one it was and the result."""
    found = find_checkpoint(config, checkpoint)
    state = build_state(config, source, workplace.strategy)
    restore(state, found)
    evaluator = Evaluator(config, source, workplace, state=state, split=split)
    return found, evaluator.evaluate(int(state.step.numpy()))


def summarise(sums: npt.NDArray[np.float64], labels: tuple[str, ...], *, split: str, step: int) -> Evaluation:
    """Turns summed counts into a result."""
    examples, correct = (part.astype(int).tolist() for part in np.split(sums[:-1], 2))
    return Evaluation(
        split=split,
        step=step,
        examples=sum(examples),
        correct=sum(correct),
        loss=float(sums[-1]) / sum(examples),
        classes=tuple(ClassCount(*row) for row in zip(labels, examples, correct, strict=True)),
    )
