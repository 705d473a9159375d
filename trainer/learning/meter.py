"""Averages losses and scores between reports, and measures the rate of training alone."""

import time
from collections.abc import Mapping

from trainer.config import TrainConfig
from trainer.learning.state import State
from trainer.learning.step import Stretch
from trainer.reading.source import Source
from trainer.running.report import TrainMetrics


class Meter:
    """Sums stretches up until they are read."""

    def __init__(self, config: TrainConfig, source: Source, state: State) -> None:
        """Begins with nothing."""
        self._score_name, self._noun, self._rate = state.task.score, state.inputs.noun, state.learning_rate
        self._epoch = config.order.steps_per_epoch(source.split(config.splits.train).draws(config.input.sampling))
        self._reset()

    def _reset(self) -> None:
        self._loss = self._score = self._examples = self._spent = 0.0
        self.pause()

    def pause(self) -> None:
        """What happened since the last step was not training."""
        self._since = time.monotonic()

    def add(self, stretch: Stretch) -> None:
        """Adds the sums of some steps."""
        self._loss, self._score = self._loss + stretch.loss, self._score + stretch.score
        self._examples += stretch.examples
        self._spent += time.monotonic() - self._since
        self.pause()

    def sums(self) -> dict[str, float]:
        """What has been added up since the last reading, to go on with after a restart."""
        return {"loss": self._loss, "score": self._score, "examples": self._examples, "spent": self._spent}

    def resume(self, sums: Mapping[str, float]) -> None:
        """Goes on from the sums of a run that was cut off."""
        self._loss, self._score = sums.get("loss", 0.0), sums.get("score", 0.0)
        self._examples, self._spent = sums.get("examples", 0.0), sums.get("spent", 0.0)

    def read(self, step: int) -> TrainMetrics:
        """The means since the last reading."""
        metrics = TrainMetrics(
            step=step,
            epoch=step / self._epoch,
            loss=self._loss / self._examples,
            score_name=self._score_name,
            score=self._score / self._examples,
            learning_rate=float(self._rate(step - 1)),
            noun=self._noun,
            per_second=self._examples / self._spent,
        )
        self._reset()
        return metrics
