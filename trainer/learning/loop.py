"""The training loop: reports, saves and evaluates between stretches of steps, from the newest checkpoint to the end."""

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shards.errors import RestartMe, ShardsmithError
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.judging.results import Evaluation
from trainer.learning.consumed import Recorder
from trainer.learning.faults import bad_loss, explained
from trainer.learning.meter import Meter
from trainer.learning.schedule import Schedule, make_schedule
from trainer.learning.state import Checkpoints, State, build_state, check_run, write_run
from trainer.learning.step import Stepper, Stretch
from trainer.reading.source import Source
from trainer.running.report import Reporter
from trainer.running.strategy import Workplace


@dataclass(frozen=True)
class Outcome:
    """How a run ended: where it began and stopped, its last evaluation (None when there was none) and its weights."""

    first_step: int
    last_step: int
    checkpoint: str
    evaluation: Evaluation | None
    weights: str


def train(config: TrainConfig, source: Source, workplace: Workplace, *, record_keys: bool = False) -> Outcome:
    """Trains to the end of the run from wherever its newest checkpoint is; writes what it consumes if told to."""
    run = check_run(config, source)
    if workplace.cluster.is_chief:
        write_run(config, run)
    state = build_state(config, source, workplace.strategy)
    with closing(Checkpoints(state, config, workplace.cluster)) as checkpoints:
        first = checkpoints.restore_latest()
        _check_same_start(workplace, first, config.output)
        schedule = make_schedule(config, source.split(config.splits.train).draws(config.input.sampling))
        evaluation = None
        if first < schedule.total:
            _announce(first, schedule.total)
            recorder = Recorder(config, source, workplace) if record_keys else None
            evaluation = Loop(
                config,
                source,
                workplace,
                state=state,
                schedule=schedule,
                checkpoints=checkpoints,
                recorder=recorder,
            ).run()
    step = int(state.step.numpy())
    return Outcome(
        first_step=first,
        last_step=step,
        checkpoint=str(checkpoints.directory / f"step-{step}"),
        evaluation=evaluation,
        weights=state.weights_digest(),
    )


def _announce(first: int, total: int) -> None:
    if first:
        print(f"resuming at step {first} of {total}", flush=True)


class Loop:
    """One run from the state's step to the end of the schedule."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        workplace: Workplace,
        *,
        state: State,
        schedule: Schedule,
        checkpoints: Checkpoints,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepares the inputs of training and evaluation; nothing is read yet."""
        self._source, self._state, self._schedule, self._checkpoints = source, state, schedule, checkpoints
        self._workplace, self._recorder = workplace, recorder
        self._stepper = Stepper(config, source, workplace, state=state, recorder=recorder)
        self._meter = Meter(config, source, state)
        self._evaluator = (
            Evaluator(config, source, workplace, state=state, split=config.splits.evaluate)
            if schedule.evaluate
            else None
        )
        self._output = Path(config.output) if workplace.cluster.is_chief else None
        self._evaluation: Evaluation | None = None

    def run(self) -> Evaluation | None:
        """Trains to the end; returns the last evaluation."""
        step = int(self._state.step.numpy())
        with Reporter(self._schedule.total, first_step=step, output=self._output) as reporter:
            while step < self._schedule.total:
                with explained(self._source):
                    stretch = self._stepper.run(self._steps_from(step))
                step += stretch.steps
                if self._recorder:
                    self._recorder.write(step - 1)
                self._check(stretch, step)
                self._do_what_is_due(step, reporter)
                if stretch.leaving and step < self._schedule.total:
                    self._leave(step)
        return self._evaluation

    def _steps_from(self, step: int) -> int:
        """How many steps to do in one call: up to the next thing that is due, one by one if each is recorded."""
        return 1 if self._recorder else self._schedule.next_stop(step) - step

    def _check(self, stretch: Stretch, step: int) -> None:
        if not math.isfinite(stretch.loss):
            raise bad_loss(stretch.loss, step)
        self._meter.add(stretch)

    def _do_what_is_due(self, step: int, reporter: Reporter) -> None:
        schedule = self._schedule
        if schedule.is_due(schedule.log, step):
            reporter.training(self._meter.read(step))
        if schedule.is_due(schedule.save, step):
            self._save()
        if self._evaluator and schedule.is_due(schedule.evaluate, step):
            self._evaluation = self._evaluator.evaluate(step)
            reporter.evaluation(self._evaluation)
        self._meter.pause()

    def _save(self) -> None:
        if self._recorder:
            self._workplace.wait_for_all()  # what is saved as done must have been recorded by everyone
        self._checkpoints.save()

    def _leave(self, step: int) -> None:
        """Saves, on all workers together, because one of them has been asked to end."""
        if not self._schedule.is_due(self._schedule.save, step):
            self._save()
        raise RestartMe(f"stopped on request; saved step {step}, and the same command resumes there")


def _check_same_start(workplace: Workplace, step: int, output: str) -> None:
    """Refuses to train when workers found different checkpoints: they do not share the output directory."""
    if workplace.sum_over_replicas(step) != step * workplace.strategy.num_replicas_in_sync:
        raise ShardsmithError(
            f"worker {workplace.cluster.index} found a checkpoint of step {step} in {output}, others another one; "
            "all workers must see the same output directory"
        )
