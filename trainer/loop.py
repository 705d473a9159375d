"""The training loop: an inner one, many steps per call inside TensorFlow, and an outer one that reports and saves."""

import math
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.dataset import training_dataset
from trainer.evaluate import Evaluator
from trainer.quiet import reason_of
from trainer.report import Reporter, TrainMetrics
from trainer.results import Evaluation
from trainer.source import Source
from trainer.state import Checkpoints, State, build_state, check_run, write_run
from trainer.strategy import Workplace

Tensor = Any


@dataclass(frozen=True)
class Outcome:
    """How a run ended: where it began and stopped, its last evaluation (None when there was none) and its weights."""

    first_step: int
    last_step: int
    checkpoint: str
    evaluation: Evaluation | None
    weights: str


class InnerLoop:
    """Training steps, several per call."""

    def __init__(self, config: TrainConfig, source: Source, workplace: Workplace, *, state: State) -> None:
        """Prepares the input from the state's step on; reading starts with the first `train`."""
        self._strategy, self._state, self._global_batch = workplace.strategy, state, config.global_batch
        start = int(state.step.numpy())
        self._iterator = workplace.distribute(
            lambda share: training_dataset(config, source, share, start_step=start), global_batch=config.global_batch
        )

    @tf.function
    def train(self, steps: Tensor) -> Tensor:
        """Does `steps` steps; returns the mean loss and score over them."""
        sums = tf.zeros([2])
        for _ in tf.range(steps):
            counted = self._strategy.run(self._step, args=(next(self._iterator),))
            sums += self._strategy.reduce(tf.distribute.ReduceOp.SUM, counted, axis=None)
        self._state.step.assign_add(tf.cast(steps, tf.int64))
        return sums / tf.cast(steps * self._global_batch, tf.float32)

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and rewriting the network's code takes long
    def _step(self, batch: dict[str, Tensor]) -> Tensor:
        """One update; returns this replica's [summed loss, summed score]."""
        model, task = self._state.model, self._state.task
        targets = batch[task.feature]
        with tf.GradientTape() as tape:
            outputs = self._state.outputs(batch, training=True)
            loss = tf.reduce_sum(task.losses(outputs, targets))
            # Gradients are summed over replicas: sum / global batch is the mean over the batch, on any number of them.
            objective = loss / self._global_batch + sum(model.losses) / self._strategy.num_replicas_in_sync
        gradients = tape.gradient(objective, model.trainable_variables)
        self._state.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.stack([loss, tf.reduce_sum(task.scores(outputs, targets))])


@dataclass(frozen=True)
class Schedule:
    """When things happen, in steps; a period of 0 means never."""

    total: int
    log: int
    save: int
    evaluate: int

    def next_stop(self, step: int) -> int:
        """The first step after `step` at which something is due."""
        return min(
            self.total, *(step - step % period + period for period in (self.log, self.save, self.evaluate) if period)
        )

    def is_due(self, period: int, step: int) -> bool:
        """Whether a period ends at `step`; the end of the run ends all that ever happen."""
        return bool(period) and (step % period == 0 or step == self.total)


def make_schedule(config: TrainConfig, records: int) -> Schedule:
    """The periods of the config in steps."""
    epoch = config.order.steps_per_epoch(records)
    return Schedule(
        total=config.total_steps(records),
        log=config.log_every,
        save=config.checkpoint.every_steps or epoch,
        evaluate=(config.evaluate_every_epochs or 0) * epoch,
    )


def train(config: TrainConfig, source: Source, workplace: Workplace) -> Outcome:
    """Trains to the end of the run from wherever its newest checkpoint is."""
    run = check_run(config, source)
    if workplace.cluster.is_chief:
        write_run(config, run)
    state = build_state(config, source, workplace.strategy)
    with closing(Checkpoints(state, config, workplace.cluster)) as checkpoints:
        try:
            return _train_from_checkpoint(config, source, workplace, state=state, checkpoints=checkpoints)
        except KeyboardInterrupt:
            _save_on_interrupt(state, workplace, checkpoints)
            raise


def _save_on_interrupt(state: State, workplace: Workplace, checkpoints: Checkpoints) -> None:
    """Keeps what was trained; several workers could only save together, so there the last checkpoint has to do."""
    step = int(state.step.numpy())
    if step and workplace.cluster.workers == 1:
        checkpoints.save()
        print(f"saved step {step}; the same command resumes there", flush=True)


def _train_from_checkpoint(
    config: TrainConfig, source: Source, workplace: Workplace, *, state: State, checkpoints: Checkpoints
) -> Outcome:
    first = checkpoints.restore_latest()
    _check_same_start(workplace, first, config.output)
    schedule = make_schedule(config, source.split(config.splits.train).records)
    evaluation = None
    if first < schedule.total:
        _announce(first, schedule.total)
        evaluation = _outer_loop(config, source, workplace, state=state, schedule=schedule, checkpoints=checkpoints)
    return Outcome(
        first_step=first,
        last_step=int(state.step.numpy()),
        checkpoint=str(checkpoints.directory / f"step-{int(state.step.numpy())}"),
        evaluation=evaluation,
        weights=state.weights_digest(),
    )


def _announce(first: int, total: int) -> None:
    if first:
        print(f"resuming at step {first} of {total}", flush=True)


def _outer_loop(
    config: TrainConfig,
    source: Source,
    workplace: Workplace,
    *,
    state: State,
    schedule: Schedule,
    checkpoints: Checkpoints,
) -> Evaluation | None:
    inner = InnerLoop(config, source, workplace, state=state)
    evaluator = (
        Evaluator(config, source, workplace, state=state, split=config.splits.evaluate) if schedule.evaluate else None
    )
    step, evaluation = int(state.step.numpy()), None
    output = Path(config.output) if workplace.cluster.is_chief else None
    with Reporter(schedule.total, first_step=step, output=output) as reporter:
        meter = _Meter(config, source, state, step)
        while step < schedule.total:
            stop = schedule.next_stop(step)
            meter.add(step, stop, _guarded(inner, stop - step, source))
            step = stop
            if schedule.is_due(schedule.log, step):
                reporter.training(meter.read(step))
            if schedule.is_due(schedule.save, step):
                checkpoints.save()
            if evaluator and schedule.is_due(schedule.evaluate, step):
                evaluation = evaluator.evaluate(step)
                reporter.evaluation(evaluation)
                meter.pause()
    return evaluation


class _Meter:
    """Averages losses and scores between reports and measures the rate of training alone."""

    def __init__(self, config: TrainConfig, source: Source, state: State, step: int) -> None:
        self._batch, self._score_name, self._noun = config.global_batch, state.task.score, state.inputs.noun
        self._epoch = config.order.steps_per_epoch(source.split(config.splits.train).records)
        self._reset(step)

    def _reset(self, step: int) -> None:
        self._first, self._loss, self._score, self._spent = step, 0.0, 0.0, 0.0
        self.pause()

    def pause(self) -> None:
        """What happened since the last step was not training."""
        self._since = time.monotonic()

    def add(self, step: int, stop: int, means: Tensor) -> None:
        """Adds the mean loss and score of the steps up to `stop`."""
        loss, score = (float(value) * (stop - step) for value in means)
        self._loss, self._score = self._loss + loss, self._score + score
        if not math.isfinite(loss):
            raise ShardsmithError(
                f"the loss is {loss} between steps {step} and {stop}; "
                "lower optimizer.learning_rate and train into another output, or resume from an older checkpoint"
            )
        self._spent += time.monotonic() - self._since
        self.pause()

    def read(self, step: int) -> TrainMetrics:
        """The means since the last reading."""
        steps = step - self._first
        metrics = TrainMetrics(
            step=step,
            epoch=step / self._epoch,
            loss=self._loss / steps,
            score_name=self._score_name,
            score=self._score / steps,
            noun=self._noun,
            per_second=steps * self._batch / self._spent,
        )
        self._reset(step)
        return metrics


def _guarded(inner: InnerLoop, steps: int, source: Source) -> Tensor:
    """Runs the inner loop; data that cannot be read becomes an error that says how to find it."""
    try:
        return inner.train(tf.constant(steps)).numpy()
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise ShardsmithError(
            f"a training step failed: {reason_of(error.message)}; "
            f"if it is about the data, find the damage with: python -m shards verify {source.directory}"
        ) from error
    except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError) as error:
        raise ShardsmithError("another worker has stopped; see its log. Give the same command to resume") from error


def _check_same_start(workplace: Workplace, step: int, output: str) -> None:
    """Refuses to train when workers found different checkpoints: they do not share the output directory."""
    if workplace.sum_over_replicas(step) != step * workplace.strategy.num_replicas_in_sync:
        raise ShardsmithError(
            f"worker {workplace.cluster.index} found a checkpoint of step {step} in {output}, others another one; "
            "all workers must see the same output directory"
        )
