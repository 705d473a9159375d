"""Training steps, many in one call of TensorFlow."""

import math
import time
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

    `steps` may be fewer than were asked for: a stretch ends early after a step with a bad loss, and when a worker has
    been asked to leave. `last_loss` is the mean loss of the last step; it is bad when it is not finite or above the
    limit. `skipped` counts examples that were damaged, and `waited` the seconds that this worker waited for its input.
    """

    steps: int
    loss: float
    score: float
    examples: float
    leaving: bool
    skipped: float
    last_loss: float
    is_bad: bool
    waited: float


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
        self._recorder, self._limit = recorder, math.inf if (limit := config.faults.loss_limit) is None else limit
        self._deterministic = config.deterministic
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
        done, sums, last_loss, is_bad, waited = self._run(tf.constant(steps))
        loss, score, examples, leaving, skipped = sums.numpy().tolist()
        return Stretch(
            steps=int(done),
            loss=loss,
            score=score,
            examples=examples,
            leaving=leaving > 0,
            skipped=skipped,
            last_loss=float(last_loss),
            is_bad=bool(is_bad),
            waited=float(waited),
        )

    @tf.function
    def _run(self, most: Tensor) -> tuple[Tensor, ...]:
        done, sums, going = tf.constant(0), tf.zeros([5], tf.float64), tf.constant(True)
        loss, is_bad, waited = tf.constant(0.0), tf.constant(False), tf.constant(0.0, tf.float64)
        while (done < most) & going:
            batch, seconds = self._next()
            counted = self._strategy.run(self._step, args=(batch,))
            total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, counted, axis=None)
            # Every worker sees the same sums, so all of them stop here or none.
            loss = tf.math.divide_no_nan(total[0], total[2])
            is_bad = ~tf.math.is_finite(total[0]) | (loss > self._limit)
            going = ~is_bad & (total[3] == 0)
            # Added up in float64, a sum does not depend on where stretches begin and end.
            done, sums, waited = done + 1, sums + tf.cast(total, tf.float64), waited + seconds
        self._state.step.assign_add(tf.cast(done, tf.int64))
        return done, sums, loss, is_bad, waited

    def _next(self) -> tuple[Any, Tensor]:
        """The next batch of this worker, and how many seconds it took to come."""
        asked = self._now()
        with tf.control_dependencies([asked]):
            batch = next(self._iterator)
        arrived = [part for each in tf.nest.flatten(batch) for part in self._strategy.experimental_local_results(each)]
        with tf.control_dependencies(arrived):
            return batch, self._now() - asked

    def _now(self) -> Tensor:
        """The time in seconds; TensorFlow forbids its own clock where results must not depend on anything."""
        if self._deterministic:
            return tf.ensure_shape(tf.numpy_function(time.monotonic, [], tf.float64), [])
        return tf.timestamp()

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and rewriting the network's code takes long
    def _step(self, batch: dict[str, Tensor]) -> Tensor:
        """One update; returns this replica's summed loss and score, its examples, if it must leave, and its skips."""
        if self._recorder:
            self._recorder.note(batch)
        skipped = tf.reduce_sum(batch["skipped"])
        return tf.concat([self._update(batch), [self._leaving.read_value(), skipped]], axis=0)
