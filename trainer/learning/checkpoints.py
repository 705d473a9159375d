"""Saves and restores the state of a run, on all workers together."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.learning import saved
from trainer.learning.progress import Progress
from trainer.learning.saved import CHECKPOINTS, VARIABLES, DamagedCheckpoint, read_saved
from trainer.learning.state import State, restore
from trainer.running.peers import tells_of_a_lost_peer
from trainer.running.strategy import Workplace


class Checkpoints:
    """The saves of one run. Every worker calls `save`, because variables may be gathered; the chief's is kept."""

    def __init__(self, state: State, config: TrainConfig, workplace: Workplace) -> None:
        """Nothing is read or written yet."""
        self._state, self._workplace, self._output = state, workplace, Path(config.output)
        self._keep, self._keep_best = config.checkpoint.keep, config.checkpoint.best

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self._output / CHECKPOINTS / f"step-{step}"

    def save(self, progress: Progress) -> None:
        """Writes the state under the name of its step, and removes what need not be kept any more."""
        if not self._workplace.cluster.is_chief:
            with tempfile.TemporaryDirectory(prefix="shardsmith-") as scratch:
                self._write(Path(scratch))
            return
        step = int(self._state.step.numpy())
        try:
            with saved.new_checkpoint(self._output, step, progress) as directory:
                self._write(directory)
            best = progress.best.step if progress.best and self._keep_best else None
            saved.prune(self._output, step=step, keep=self._keep, best=best)
        except (tf.errors.OpError, OSError) as error:
            if isinstance(error, tf.errors.OpError) and tells_of_a_lost_peer(error):
                raise
            raise ShardsmithError(
                f"the checkpoint cannot be written to {self._output / CHECKPOINTS}: {error}; "
                "free space or permit writing, then give the same command to resume"
            ) from error

    def _write(self, directory: Path) -> None:
        self._state.checkpoint.write(str(directory / VARIABLES))

    def amend(self, progress: Progress) -> None:
        """Replaces the progress in the checkpoint of this step."""
        if self._workplace.cluster.is_chief:
            saved.amend(self._output, int(self._state.step.numpy()), progress)

    def restore_newest(self) -> Progress:
        """Restores the newest sound save; returns its progress, one restart later. Begins at step 0 without a save."""
        found = agree_on_checkpoint(self._workplace, self._output, self._newest)
        if not found:
            return Progress()
        restore(self._state, found)
        progress = read_saved(Path(found), thorough=False).progress
        return replace(progress, restarts=progress.restarts + 1)

    def _newest(self) -> str:
        found = saved.newest(self._output)
        return str(found.path) if found else ""


def agree_on_checkpoint(workplace: Workplace, output: Path, choose: Callable[[], str]) -> str:
    """The checkpoint that the chief chooses, an empty text for none; when it cannot, its error on all workers.

    All of them must see the same one, wherever they have the output directory.
    """
    choice: dict[str, str] = {}
    if workplace.cluster.is_chief:
        try:
            path = choose()
            choice = {"path": os.path.relpath(path, output) if path else ""}
        except ShardsmithError as error:
            if workplace.cluster.workers == 1:
                raise
            choice = {"error": str(error)}
    choice = json.loads(workplace.gather_texts(json.dumps(choice))[0])
    if "error" in choice:
        raise ShardsmithError(choice["error"])
    found = os.path.normpath(output / choice["path"]) if choice["path"] else ""
    _check_same(workplace, found)
    return found


def _check_same(workplace: Workplace, path: str) -> None:
    """Refuses to go on when a worker sees another checkpoint at the path, or none."""
    seen = workplace.gather_texts(_seen(path))
    for worker, text in enumerate(seen):
        if text != seen[0]:
            raise ShardsmithError(
                f"worker {worker} does not see the checkpoint {path} that worker 0 goes on from ({text}); "
                "all workers must see the same output directory"
            )


def _seen(path: str) -> str:
    try:
        return read_saved(Path(path), thorough=False).digest if path else "none"
    except DamagedCheckpoint as damage:
        return str(damage)
