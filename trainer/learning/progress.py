"""What a run knows about itself besides its variables: saved with them, as plain values. No TensorFlow."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.judging.judges import metric_names
from trainer.judging.results import BETTER
from trainer.reading.source import Source


@dataclass(frozen=True)
class Best:
    """The best value of a metric so far, the step it was reached at, and how many evaluations there were since."""

    metric: str
    value: float
    step: int
    since: int = 0

    def after(self, value: float, step: int, *, min_delta: float) -> "Best":
        """The best when this value is known too; only more than `min_delta` is an improvement."""
        gain = self.value - value if BETTER.get(self.metric) == "lower" else value - self.value
        return Best(self.metric, value, step) if gain > min_delta else replace(self, since=self.since + 1)


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    `evaluated` is the step of the last evaluation. `best` is what `--checkpoint best` means, `stopping` what
    early stopping goes by. `sums` are those of the log interval that has begun, so that its means will be those of all
    its steps. `skipped` are ranges of steps (first, end) that are not trained on, and `restarts` how often the run was
    taken up again.
    """

    evaluated: int = 0
    best: Best | None = None
    stopping: Best | None = None
    sums: Mapping[str, float] = field(default_factory=dict)
    skipped: tuple[tuple[int, int], ...] = ()
    restarts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Progress":
        """The progress that `as_dict` gave; raises ValueError, TypeError or KeyError if it is not one."""
        if unknown := values.keys() - {each.name for each in fields(cls)}:
            raise ValueError(f"unknown state {sorted(unknown)[0]!r}: it is from another release")
        best, stopping = (Best(**found) if (found := values.get(name)) else None for name in ("best", "stopping"))
        skipped = tuple((int(first), int(end)) for first, end in values.get("skipped", ()))
        return cls(**dict(values) | {"best": best, "stopping": stopping, "skipped": skipped})


def judge_progress(progress: Progress, metrics: Mapping[str, float], step: int, config: TrainConfig) -> Progress:
    """The progress after an evaluation at `step` gave `metrics`, the most telling first."""
    best = _follow(progress.best, metrics, step, metric=config.checkpoint.metric, min_delta=0.0)
    rule = config.early_stopping
    stopping = _follow(progress.stopping, metrics, step, metric=rule.metric, min_delta=rule.min_delta)
    return replace(progress, evaluated=step, best=best, stopping=stopping)


def _follow(
    best: Best | None, metrics: Mapping[str, float], step: int, *, metric: str | None, min_delta: float
) -> Best:
    name = metric or next(iter(metrics))
    if best is None or best.metric != name or math.isnan(best.value):
        return Best(name, metrics[name], step)
    return best.after(metrics[name], step, min_delta=min_delta)


def is_exhausted(progress: Progress, config: TrainConfig) -> bool:
    """Whether early stopping ends the run."""
    patience, seen = config.early_stopping.patience, progress.stopping
    return patience is not None and seen is not None and seen.since >= patience


def check_metrics(config: TrainConfig, source: Source) -> None:
    """Refuses the name of a metric that no evaluation gives."""
    known = metric_names(source)
    wanted = {"checkpoint.metric": config.checkpoint.metric, "early_stopping.metric": config.early_stopping.metric}
    for setting, name in wanted.items():
        if name is not None and name not in known:
            raise UsageError(f"{setting}: an evaluation has no {name!r}; choose one of {', '.join(known)}")
