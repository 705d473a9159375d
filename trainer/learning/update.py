"""One update of the weights, as each replica does its part of it."""

from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.learning.state import State

Tensor = Any


class Update:
    """Moves the weights by one batch."""

    def __init__(self, config: TrainConfig, state: State, *, replicas: int) -> None:
        """`replicas` is how many do this together."""
        self._state, self._global_batch, self._replicas = state, config.global_batch, replicas

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        """One update; returns this replica's summed loss and score, and its examples, of those that count."""
        model, task, weights = self._state.model, self._state.task, batch["weight"]
        targets = batch[task.feature]
        with tf.GradientTape() as tape:
            outputs = self._state.outputs(batch, training=True)
            loss = tf.reduce_sum(task.losses(outputs, targets) * weights)
            # Gradients are summed over replicas. Divided by the global batch, each example counts the same in every
            # step, on any number of replicas; a last batch that is not full makes a smaller step.
            objective = loss / self._global_batch + sum(model.losses) / self._replicas
        gradients = tape.gradient(objective, model.trainable_variables)
        self._state.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.stack([loss, tf.reduce_sum(task.scores(outputs, targets) * weights), tf.reduce_sum(weights)])
