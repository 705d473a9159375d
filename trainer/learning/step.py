"""Training steps, many in one call of TensorFlow."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.learning.class_weights import find_class_weights
from trainer.learning.consumed import Recorder
from trainer.learning.state import State
from trainer.learning.update import Update
from trainer.reading.dataset import training_dataset
from trainer.reading.source import Source
from trainer.running.strategy import Workplace

Tensor = Any


@dataclass(frozen=True)
class Stretch:
    """What some steps in a row amounted to, on all workers together: sums over the examples that count.

    `steps` may be fewer than were asked for: a stretch ends early after a step whose loss is not a number, and when a
    worker has been asked to leave.
    """

    steps: int
    loss: float
    score: float
    examples: float
    leaving: bool


class Stepper:
    """Does training steps, from the state's step on."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        workplace: Workplace,
        *,
        state: State,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepares the input; reading starts with the first `run`. A recorder is shown each batch."""
        self._strategy, self._state, self._leaving = workplace.strategy, state, workplace.leaving
        self._recorder = recorder
        self._update = Update(
            config,
            state,
            replicas=workplace.strategy.num_replicas_in_sync,
            weights=find_class_weights(config, source),
        )
        start = int(state.step.numpy())
        self._iterator = workplace.distribute(
            lambda share: training_dataset(config, source, share, start_step=start), global_batch=config.global_batch
        )

    def run(self, steps: int) -> Stretch:
        """Does up to `steps` steps."""
        done, sums = self._run(tf.constant(steps))
        loss, score, examples, leaving = sums.numpy().tolist()
        return Stretch(steps=int(done), loss=loss, score=score, examples=examples, leaving=leaving > 0)

    @tf.function
    def _run(self, most: Tensor) -> tuple[Tensor, Tensor]:
        done, sums, going = tf.constant(0), tf.zeros([4], tf.float64), tf.constant(True)
        while (done < most) & going:
            counted = self._strategy.run(self._step, args=(next(self._iterator),))
            total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, counted, axis=None)
            # Every worker sees the same sums, so all of them stop here or none.
            going = tf.math.is_finite(total[0]) & (total[3] == 0)
            # Added up in float64, a sum does not depend on where stretches begin and end.
            done, sums = done + 1, sums + tf.cast(total, tf.float64)
        self._state.step.assign_add(tf.cast(done, tf.int64))
        return done, sums

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and rewriting the network's code takes long
    def _step(self, batch: dict[str, Tensor]) -> Tensor:
        """One update; returns this replica's summed loss and score, its examples, and whether it must leave."""
        if self._recorder:
            self._recorder.note(batch)
        return tf.concat([self._update(batch), [self._leaving.read_value()]], axis=0)
