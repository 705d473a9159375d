"""What a run remembers: model, optimizer, step and random state in checkpoints, its settings in run.json."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError, UsageError
from shards.files import write_atomically
from trainer.config import TrainConfig
from trainer.learning.ema import Average
from trainer.learning.model import build_model
from trainer.learning.optimizer import LearningRate, build_optimizer
from trainer.learning.rates import plan_rates
from trainer.learning.task import Task, make_task
from trainer.reading.inputs import Inputs, make_inputs
from trainer.reading.source import Source
from trainer.reading.transform import Transform
from trainer.running.cluster import Cluster

RUN = "run.json"
CHECKPOINTS = "checkpoints"
PREFIX = "step"


@dataclass(frozen=True)
class State:
    """The variables of a run, what goes in and what is learnt, and the checkpoint that binds them together."""

    inputs: Inputs
    task: Task
    transform: Transform
    model: Any
    optimizer: Any
    learning_rate: LearningRate
    average: Average | None
    step: Any
    checkpoint: Any

    @property
    def judged(self) -> Any:
        """The network that is evaluated and exported: that of the averaged weights, if there are any."""
        return self.average.model if self.average else self.model

    def outputs(self, batch: dict[str, Any], *, training: bool) -> Any:
        """What the network makes of a batch: the trained one in training, else the one that is judged."""
        network = self.model if training else self.judged
        return tf.cast(network(self.transform(batch[self.inputs.feature]), training=training), tf.float32)

    def weights_digest(self) -> str:
        """The sha256 of all weights, moving statistics and averages included: equal on all workers of a healthy run."""
        digest = hashlib.sha256()
        for weight in self.model.weights + (self.average.model.weights if self.average else []):
            digest.update(weight.numpy().tobytes())
        return digest.hexdigest()


def build_state(config: TrainConfig, source: Source, strategy: Any) -> State:
    """Fresh variables, placed by the strategy."""
    rate = LearningRate(plan_rates(config, records=source.split(config.splits.train).draws(config.input.sampling)))
    inputs, task = make_inputs(source.form), make_task(source)
    build = partial(build_model, config.model, classes=task.outputs, **inputs.shape)
    with strategy.scope():
        model = build()
        optimizer = build_optimizer(
            config.optimizer, rate, variables=model.trainable_variables, precision=config.model.precision
        )
        average = Average(model, build(), decay=config.optimizer.ema) if config.optimizer.ema else None
        step = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        averaged = {"average": average.model} if average else {}
        checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, step=step, seeds=_seed_states(model), **averaged
        )
    return State(
        inputs=inputs,
        task=task,
        transform=Transform(source.transform_directory),
        model=model,
        optimizer=optimizer,
        learning_rate=rate,
        average=average,
        step=step,
        checkpoint=checkpoint,
    )


def _seed_states(model: Any) -> list[Any]:
    """The states of random layers: tf.train.Checkpoint misses them in a Keras 3 model, and dropout would start anew."""
    weights = {id(weight) for weight in model.weights}
    return [variable.value for variable in model.variables if id(variable) not in weights]


class Checkpoints:
    """The saves of one run under <output>/checkpoints. Every worker calls `save`, the chief's is kept."""

    def __init__(self, state: State, config: TrainConfig, cluster: Cluster) -> None:
        """Nothing is read or written yet."""
        self._state = state
        self.directory = Path(config.output) / CHECKPOINTS
        self._scratch = None if cluster.is_chief else tempfile.TemporaryDirectory(prefix="shardsmith-")
        self._manager = tf.train.CheckpointManager(
            state.checkpoint,
            self._scratch.name if self._scratch else str(self.directory),
            max_to_keep=config.checkpoint.keep,
            checkpoint_name=PREFIX,
        )

    def save(self) -> str:
        """Writes the state under the name of its step."""
        try:
            return self._manager.save(checkpoint_number=int(self._state.step.numpy()))
        except (tf.errors.OpError, OSError) as error:
            raise ShardsmithError(
                f"the checkpoint cannot be written to {self.directory}: {error}; "
                "free space or permit writing, then give the same command to resume"
            ) from error

    def close(self) -> None:
        """Removes what only this worker saved."""
        if self._scratch:
            self._scratch.cleanup()

    def restore_latest(self) -> int:
        """Restores the newest save and returns its step; 0 when there is none."""
        latest = latest_checkpoint(self.directory.parent)
        if latest:
            restore(self._state, latest)
        return int(self._state.step.numpy())


def latest_checkpoint(output: Path) -> str | None:
    """The newest checkpoint of a run."""
    return tf.train.latest_checkpoint(str(output / CHECKPOINTS))


def find_checkpoint(config: TrainConfig, wanted: str | None) -> str:
    """The checkpoint asked for, or the newest of the run; an error when there is none."""
    found = wanted.removesuffix(".index") if wanted else latest_checkpoint(Path(config.output))
    if found is None:
        raise ShardsmithError(f"{config.output} has no checkpoint; train first: python -m trainer train CONFIG")
    if not Path(f"{found}.index").is_file():
        raise UsageError(f"no checkpoint at {found}: give a path such as {config.output}/{CHECKPOINTS}/{PREFIX}-100")
    return found


def restore(state: State, path: str) -> None:
    """Restores everything, or fails saying which checkpoint does not fit."""
    try:
        state.checkpoint.restore(path).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise ShardsmithError(f"checkpoint {path} does not fit this model: {reason}") from error


def check_run(config: TrainConfig, source: Source) -> dict[str, Any]:
    """What identifies this run; refuses an output directory that holds another one."""
    run = {"settings": config.shaping(), "data": source.digest(config.splits.train)}
    path = Path(config.output) / RUN
    if not path.is_file():
        return run
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
        changes = list(_differences(begun, run))
    except (ValueError, AttributeError, OSError) as error:
        raise ShardsmithError(f"{path} cannot be read: {error}; train into another output directory") from error
    if changes:
        raise UsageError(
            f"{config.output} holds a run with other settings: {'; '.join(changes)}; "
            "set them back to go on with it, or choose another output"
        )
    return run


def write_run(config: TrainConfig, run: dict[str, Any]) -> None:
    """Writes run.json."""
    try:
        Path(config.output).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(config.output) / RUN, (json.dumps(run, indent=1) + "\n").encode())
    except OSError as error:
        raise ShardsmithError(f"output {config.output} cannot be written: {error.strerror}") from error


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            name = f"{prefix}{key}".removeprefix("settings.")
            yield "the training data changed" if name == "data" else f"{name} was {before!r}, is {now!r}"
