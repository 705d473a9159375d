"""A bad loss: which examples were in the batch, and the way back to the last good weights.

Going back leaves the batches since then out instead of doing them again: the step counter stays where it is, so that
the batch of every later step remains what the order says. The learning rate follows the step counter, because a
schedule ends when the run does; everything else, the optimizer's moments and random states too, is that of the
checkpoint.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shards.errors import ShardsmithError
from shards.files import write_atomically
from trainer.config import TrainConfig
from trainer.learning.checkpoints import agree_on_checkpoint
from trainer.learning.progress import Progress
from trainer.learning.saved import DamagedCheckpoint, list_checkpoints, read_saved
from trainer.learning.state import State, restore
from trainer.reading.keys import read_keys
from trainer.reading.plan import global_batches
from trainer.reading.source import Source
from trainer.running.strategy import Workplace

NAMED = 3  # examples in a message


@dataclass(frozen=True)
class BadLoss:
    """A step whose loss is not finite or above the limit; `examples` are the keys in its batch, listed in `path`."""

    step: int
    loss: float
    limit: float | None
    examples: tuple[str, ...]
    path: Path

    def __str__(self) -> str:
        """Reads like `the loss is nan at step 7, whose batch held cat/1, cat/2 and 6 more examples (all in FILE)`."""
        above = f", above the limit of {self.limit:g}," if self.limit and math.isfinite(self.loss) else ""
        named = ", ".join(self.examples[:NAMED])
        more = f" and {len(self.examples) - NAMED} more examples" if len(self.examples) > NAMED else ""
        return (
            f"the loss is {self.loss:g}{above} at step {self.step}, whose batch held {named}{more} (all in {self.path})"
        )

    @property
    def told_loss(self) -> float | str:
        """The loss for JSON, which has no number that is not finite."""
        return self.loss if math.isfinite(self.loss) else str(self.loss)


def find_culprits(config: TrainConfig, source: Source, *, step: int, loss: float) -> BadLoss:
    """Whom a bad loss may be due to: the examples in the batch of this step, counted from 1."""
    split = source.split(config.splits.train)
    ordinals = next(global_batches(config, split, start_step=step - 1))
    path = Path(config.output) / f"bad_loss-step-{step}.json"
    return BadLoss(step, loss, config.faults.loss_limit, tuple(read_keys(split, ordinals)), path)


def write_culprits(bad: BadLoss) -> None:
    """Writes the whole list of examples."""
    values = {"step": bad.step, "loss": bad.told_loss, "examples": bad.examples}
    write_atomically(bad.path, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())


def recover(bad: BadLoss, config: TrainConfig, workplace: Workplace, *, state: State, progress: Progress) -> Progress:
    """Goes back to good weights, or raises an error if the config says so or there are none."""
    if workplace.cluster.is_chief:
        write_culprits(bad)
    if config.faults.bad_loss == "stop":
        raise ShardsmithError(
            f"{bad}; nothing of it was saved. Look at these examples and lower optimizer.learning_rate, "
            "or leave such batches out with --set faults.bad_loss=rollback"
        )
    if len(progress.skipped) >= config.faults.most_rollbacks:
        raise ShardsmithError(
            f"{bad}; the run has gone back {len(progress.skipped)} times already, as often as faults.most_rollbacks "
            "permits: lower optimizer.learning_rate, or look at these examples"
        )
    good = _go_back(bad, config, workplace, state=state, skipped=progress.skipped)
    state.step.assign(bad.step)
    state.optimizer.iterations.assign(bad.step)
    print(
        f"{bad}; back to the weights of step {good}, without the batches of steps {good + 1} to {bad.step}",
        flush=True,
    )
    return replace(progress, sums={}, skipped=(*progress.skipped, (good, bad.step)))


def _go_back(
    bad: BadLoss, config: TrainConfig, workplace: Workplace, *, state: State, skipped: tuple[tuple[int, int], ...]
) -> int:
    """Restores the newest checkpoint that may be good; returns its step."""
    output = Path(config.output)
    candidates = _sound(output, before=oldest_suspect(bad.step, skipped))
    while found := agree_on_checkpoint(workplace, output, lambda: next(candidates, "")):
        restore(state, found)
        if _is_finite(state.model.weights):
            return int(state.step.numpy())
    raise ShardsmithError(
        f"{bad}; no good checkpoint is left to go back to: lower optimizer.learning_rate and train into another "
        "output, or set checkpoint.keep higher"
    )


def oldest_suspect(step: int, skipped: Iterable[tuple[int, int]]) -> int:
    """The step that a good checkpoint must be older than, when the loss is bad at `step`.

    Weights from which a bad loss came at once, in the first step after going back to them, are not good.
    """
    for first, end in reversed(tuple(skipped)):
        if end + 1 != step:
            break
        step = first
    return step


def _sound(output: Path, *, before: int) -> Iterator[str]:
    for step, path in list_checkpoints(output):
        if step < before:
            try:
                yield str(read_saved(path).path)
            except DamagedCheckpoint:
                continue


def _is_finite(weights: Iterable[Any]) -> bool:
    return all(np.isfinite(weight.numpy()).all() for weight in weights)
