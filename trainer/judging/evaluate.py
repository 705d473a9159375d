"""Judges a model on a split: each example exactly once, on any number of workers."""

from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.judging.results import Evaluation
from trainer.judging.tally import make_tally
from trainer.learning.faults import explained
from trainer.learning.state import State, build_state, find_checkpoint, restore
from trainer.reading.dataset import evaluation_dataset, evaluation_steps
from trainer.reading.source import Source
from trainer.running.strategy import Workplace

Tensor = Any


class Evaluator:
    """Evaluates a model on one split as often as asked, over one long-lived iterator."""

    def __init__(self, config: TrainConfig, source: Source, workplace: Workplace, *, state: State, split: str) -> None:
        """Prepares the input; reading starts with the first `evaluate`."""
        self._strategy, self._state, self._split, self._source = workplace.strategy, state, split, source
        self._tally = make_tally(state.task)
        self._steps = evaluation_steps(config, source.split(split))
        self._iterator = workplace.distribute(
            lambda share: evaluation_dataset(config, source, share, split=split), global_batch=config.global_batch
        )

    def evaluate(self, step: int) -> Evaluation:
        """One pass over the split with the weights as they are after `step`."""
        with explained(self._source):
            sums = self._one_pass(tf.constant(self._steps)).numpy()
        return self._tally.summarise(sums, split=self._split, step=step)

    @tf.function
    def _one_pass(self, steps: Tensor) -> Tensor:
        sums = tf.zeros([self._tally.width], tf.float64)
        for _ in tf.range(steps):
            counted = self._strategy.run(self._count, args=(next(self._iterator),))
            sums += self._strategy.reduce(tf.distribute.ReduceOp.SUM, counted, axis=None)
        return sums

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and rewriting the network's code takes long
    def _count(self, batch: dict[str, Tensor]) -> Tensor:
        outputs = self._state.outputs(batch, training=False)
        return self._tally.sums(outputs, batch[self._state.task.feature], batch["weight"])


def evaluate_checkpoint(
    config: TrainConfig, source: Source, workplace: Workplace, *, split: str, checkpoint: str | None
) -> tuple[str, Evaluation]:
    """Judges a checkpoint (the newest by default) on a split; returns which one it was and the result."""
    found = find_checkpoint(config, checkpoint)
    state = build_state(config, source, workplace.strategy)
    restore(state, found)
    evaluator = Evaluator(config, source, workplace, state=state, split=split)
    return found, evaluator.evaluate(int(state.step.numpy()))
