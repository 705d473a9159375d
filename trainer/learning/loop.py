"""The training loop: reports, saves and evaluates between stretches of steps, from the newest checkpoint to the end."""

from dataclasses import dataclass, replace
from pathlib import Path

from shards.errors import RestartMe
from trainer.config import TrainConfig
from trainer.judging.evaluate import CutShort, Evaluator
from trainer.judging.results import Evaluation
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.consumed import Recorder
from trainer.learning.faults import explained
from trainer.learning.initial import begin
from trainer.learning.meter import Meter
from trainer.learning.progress import Best, Progress, is_exhausted, judge_progress
from trainer.learning.rollback import find_culprits, recover
from trainer.learning.run import check_run, write_run
from trainer.learning.schedule import Schedule, make_schedule
from trainer.learning.state import State, build_state
from trainer.learning.step import Stepper, Stretch
from trainer.reading.source import Source
from trainer.running.profile import Profile
from trainer.running.report import Reporter
from trainer.running.strategy import Workplace


@dataclass(frozen=True)
class Outcome:
    """How a run ended: where it began and stopped, its last evaluation (None when there was none) and its weights.

    `best` is the best evaluation ever; `early` whether early stopping ended the run; `skipped` how many examples were
    left out because their records are damaged.
    """

    first_step: int
    last_step: int
    checkpoint: str
    evaluation: Evaluation | None
    best: Best | None
    early: bool
    weights: str
    skipped: int


def train(
    config: TrainConfig, source: Source, workplace: Workplace, *, record_keys: bool = False, profile: bool = False
) -> Outcome:
    """Trains to the end of the run from wherever its newest checkpoint is.

    Writes what it consumes if told to, and the trace of some steps of the chief.
    """
    run = check_run(config, source)
    state = build_state(config, source, workplace.strategy)
    checkpoints = Checkpoints(state, config, workplace)
    progress = checkpoints.restore_newest()
    first = int(state.step.numpy())
    if not progress.restarts:  # nothing was restored
        begin(config, state, workplace.strategy)
    if workplace.cluster.is_chief:
        write_run(config, run)
    schedule = make_schedule(config, source.split(config.splits.train).draws(config.input.sampling))
    evaluation, skipped = None, 0
    if not is_exhausted(progress, config) and (
        first < schedule.total or schedule.is_missing(progress.evaluated, first)
    ):
        _announce(first, schedule.total)
        recorder = Recorder(config, source, workplace) if record_keys else None
        wanted = profile and workplace.cluster.is_chief
        tracer = Profile(config.output, first_step=first, total=schedule.total, wanted=wanted)
        loop = Loop(config, source, workplace, state, schedule, checkpoints, progress, tracer, recorder)
        evaluation, progress = loop.run()
        skipped = loop.skipped
    step = int(state.step.numpy())
    return Outcome(
        first_step=first,
        last_step=step,
        checkpoint=str(checkpoints.path(step)),
        evaluation=evaluation,
        best=progress.best,
        early=is_exhausted(progress, config),
        weights=state.weights_digest(),
        skipped=skipped,
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
        state: State,
        schedule: Schedule,
        checkpoints: Checkpoints,
        progress: Progress,
        profile: Profile,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepares the inputs of training and evaluation; nothing is read yet."""
        self._config, self._source, self._workplace, self._state = config, source, workplace, state
        self._schedule, self._checkpoints, self._recorder = schedule, checkpoints, recorder
        self._progress, self._profile = progress, profile
        self._stepper = Stepper(config, source, workplace, state=state, recorder=recorder)
        self._meter = Meter(config, source, state)
        self._meter.resume(progress.sums)
        self._evaluator = (
            Evaluator(config, source, workplace, state=state, split=config.splits.evaluate)
            if schedule.evaluate
            else None
        )
        self._evaluation: Evaluation | None = None

    def run(self) -> tuple[Evaluation | None, Progress]:
        """Trains to the end; returns the last evaluation and the progress."""
        step = int(self._state.step.numpy())
        output = Path(self._config.output) if self._workplace.cluster.is_chief else None
        with (
            Reporter(
                self._schedule.total, first_step=step, evaluated=self._progress.evaluated, output=output
            ) as reporter,
            self._profile,
        ):
            self._profile.reach(step)
            if step == 0 and self._config.faults.bad_loss == "rollback":
                self._save()  # there must be something to go back to
            if self._schedule.is_missing(self._progress.evaluated, step):
                self._evaluate(step, reporter, is_saved=True)
            while step < self._schedule.total and not is_exhausted(self._progress, self._config):
                with explained(self._source):
                    stretch = self._stepper.run(self._steps_from(step))
                step += stretch.steps
                self._profile.reach(step)
                if self._recorder:
                    self._recorder.write(step - 1)
                is_back = stretch.is_bad and self._go_back(stretch, step, reporter)
                if not is_back:
                    self._meter.add(stretch)
                leaving = stretch.leaving and step < self._schedule.total
                self._do_what_is_due(step, reporter, leaving=leaving, must_save=is_back)
        return self._evaluation, self._progress

    @property
    def skipped(self) -> int:
        """How many examples were left out as damaged."""
        return self._meter.all_skipped

    def _steps_from(self, step: int) -> int:
        """How many steps to do in one call: up to the next thing that is due, one by one if each is recorded."""
        steps = 1 if self._recorder else self._schedule.next_stop(step) - step
        return self._profile.cut(step, steps)

    def _go_back(self, stretch: Stretch, step: int, reporter: Reporter) -> bool:
        """Leaves out what led to a bad loss, or raises it as an error."""
        bad = find_culprits(self._config, self._source, step=step, loss=stretch.last_loss)
        self._progress = recover(bad, self._config, self._workplace, state=self._state, progress=self._progress)
        self._meter.resume(self._progress.sums)
        back_to, _ = self._progress.skipped[-1]
        reporter.rollback(step, self._meter.epoch(step), loss=bad.told_loss, back_to=back_to)
        return True

    def _do_what_is_due(self, step: int, reporter: Reporter, *, leaving: bool, must_save: bool) -> None:
        """Reports, saves and evaluates. Whoever is asked to leave saves at once; a resumed run evaluates then."""
        schedule = self._schedule
        if schedule.is_due(schedule.log, step) and not must_save:  # going back was reported already
            reporter.training(self._meter.read(step, self._workplace))
        is_saved = leaving or must_save or schedule.is_due(schedule.save, step)
        if is_saved:
            self._save()
        if leaving:
            raise _stopped(step)
        if self._evaluator and schedule.is_due(schedule.evaluate, step):
            self._evaluate(step, reporter, is_saved=is_saved)
        self._meter.pause()

    def _evaluate(self, step: int, reporter: Reporter, *, is_saved: bool) -> None:
        """Judges the weights of a step, and sees to it that what came out survives with them."""
        assert self._evaluator
        try:
            self._evaluation = self._evaluator.evaluate(step)
        except CutShort:
            if not is_saved:
                self._save()
            raise _stopped(step) from None  # a resumed run evaluates then
        reporter.evaluation(self._evaluation)
        metrics = self._evaluation.metrics | {"loss": self._evaluation.loss}
        self._progress = judge_progress(self._progress, metrics, step, self._config)
        is_best = self._config.checkpoint.best and self._progress.best and self._progress.best.step == step
        if is_saved:
            self._checkpoints.amend(self._with_sums())
        elif is_best or is_exhausted(self._progress, self._config):
            self._save()

    def _save(self) -> None:
        if self._recorder:
            self._workplace.wait_for_all()  # what is saved as done must have been recorded by everyone
        self._checkpoints.save(self._with_sums())

    def _with_sums(self) -> Progress:
        self._progress = replace(self._progress, sums=self._meter.sums())
        return self._progress


def _stopped(step: int) -> RestartMe:
    return RestartMe(f"stopped on request; saved step {step}, and the same command resumes there")
