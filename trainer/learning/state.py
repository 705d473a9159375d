"""The variables of a run: model, optimizer, step and random state."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.learning.chance import draw_apart
from trainer.learning.ema import Average
from trainer.learning.model import build_model
from trainer.learning.optimizer import LearningRate, build_optimizer
from trainer.learning.rates import plan_rates
from trainer.learning.saved import VARIABLES
from trainer.learning.task import Task, make_task
from trainer.reading.columns import Columns
from trainer.reading.inputs import Inputs, make_inputs
from trainer.reading.source import Source
from trainer.reading.transform import Transform


@dataclass(frozen=True)
class State:
    """The variables of a run, what goes in and what is learnt, and the checkpoint that binds them together."""

    inputs: Inputs
    columns: Columns
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
        return tf.cast(network(self.given(batch), training=training), tf.float32)

    def given(self, batch: dict[str, Any]) -> Any:
        """What a network is given: normalised pictures or rows, and the columns if there are any."""
        normalised = self.transform(batch[self.inputs.feature])
        return [normalised, self.columns.joined(batch, self.transform)] if self.columns.entries else normalised

    def weights_digest(self) -> str:
        """The sha256 of all weights, moving statistics and averages included: equal on all workers of a healthy run."""
        digest = hashlib.sha256()
        for weight in self.model.weights + (self.average.model.weights if self.average else []):
            digest.update(weight.numpy().tobytes())
        return digest.hexdigest()


def build_state(config: TrainConfig, source: Source, strategy: Any) -> State:
    """Fresh variables, placed by the strategy."""
    rate = LearningRate(plan_rates(config, records=source.split(config.splits.train).draws(config.input.sampling)))
    inputs, columns, task = make_inputs(source.form), Columns(source.columns), make_task(source)
    build = partial(build_model, config.model, classes=task.outputs, **inputs.shape, **columns.shape)
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
    draw_apart(model)
    return State(
        inputs=inputs,
        columns=columns,
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


def restore(state: State, path: str | Path) -> None:
    """Restores everything from a checkpoint's directory, or fails saying which checkpoint does not fit."""
    try:
        state.checkpoint.read(str(Path(path) / VARIABLES)).assert_existing_objects_matched()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise ShardsmithError(f"checkpoint {path} does not fit this model: {reason}") from error
