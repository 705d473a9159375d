"""Averages losses and scores between reports, and measures the rate of training alone."""

import time
from collections.abc import Mapping

from trainer.config import TrainConfig
from trainer.learning.state import State
from trainer.learning.step import Stretch
from trainer.reading.source import Source
from trainer.running.report import TrainMetrics
from trainer.running.strategy import Workplace

SUMS = ("loss", "score", "examples", "skipped", "spent")


class Meter:
    """Sums stretches up until they are read."""

    def __init__(self, config: TrainConfig, source: Source, state: State) -> None:
        """Begins with nothing."""
        self._score_name, self._noun, self._rate = state.task.score, state.inputs.noun, state.learning_rate
        self._epoch = config.order.steps_per_epoch(source.split(config.splits.train).draws(config.input.sampling))
        self.all_skipped = 0
        self._reset()

    def _reset(self) -> None:
        self._loss = self._score = self._examples = self._skipped = self._spent = 0.0
        self._measured = self._waited = 0.0  # seconds of this process alone
        self.pause()

    def pause(self) -> None:
        """What happened since the last step was not training."""
        self._since = time.monotonic()

    def add(self, stretch: Stretch) -> None:
        """Adds the sums of some steps."""
        self._loss, self._score = self._loss + stretch.loss, self._score + stretch.score
        self._examples, self._skipped = self._examples + stretch.examples, self._skipped + stretch.skipped
        seconds = time.monotonic() - self._since
        self._spent, self._measured = self._spent + seconds, self._measured + seconds
        self._waited += stretch.waited
        self.all_skipped += round(stretch.skipped)
        self.pause()

    def epoch(self, step: int) -> float:
        """How many epochs are done after `step` steps."""
        return step / self._epoch

    def sums(self) -> dict[str, float]:
        """What has been added up since the last reading, to go on with after a restart."""
        return {name: getattr(self, f"_{name}") for name in SUMS}

    def resume(self, sums: Mapping[str, float]) -> None:
        """Goes on from the sums of a run that was cut off, or begins anew without any."""
        self._reset()
        for name in SUMS:
            setattr(self, f"_{name}", sums.get(name, 0.0))

    def read(self, step: int, workplace: Workplace) -> TrainMetrics:
        """The means since the last reading; all workers read together, to learn of each other how long they waited."""
        waiting = workplace.gather_texts(str(self._waited / self._measured))
        examples = self._examples or 1.0  # there are none when all were damaged
        metrics = TrainMetrics(
            step=step,
            epoch=self.epoch(step),
            loss=self._loss / examples,
            score_name=self._score_name,
            score=self._score / examples,
            learning_rate=float(self._rate(step - 1)),
            noun=self._noun,
            per_second=self._examples / self._spent,
            waiting=tuple(map(float, waiting)),
            skipped=round(self._skipped),
        )
        self._reset()
        return metrics
