"""One update of the weights, as each replica does its part of it."""

from functools import partial
from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.learning.mixing import Mixer, mixed_losses
from trainer.learning.state import State
from trainer.learning.task import Weights

Tensor = Any
Batch = dict[str, Any]


class Update:
    """Moves the weights by one batch."""

    def __init__(self, config: TrainConfig, state: State, *, replicas: int, weights: Weights = None) -> None:
        """`replicas` is how many do this together, `weights` how much each label counts."""
        self._state, self._global_batch = state, config.global_batch
        self._losses = partial(state.task.losses, smoothing=config.loss.label_smoothing, weights=weights)
        self._slices = config.optimizer.accumulate
        self._mix = Mixer(config, given=state.inputs.feature, target=state.task.feature)
        self._parts = replicas * self._slices
        self._slice_size = config.global_batch // self._parts

    def __call__(self, batch: Batch) -> Tensor:
        """One update; returns this replica's summed loss and score, and its examples, of those that count."""
        optimizer, variables = self._state.optimizer, self._state.model.trainable_variables
        counted, gradients = self._in_slices(self._mix(batch))
        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        optimizer.apply_gradients(zip(summed, variables, strict=True))
        if self._state.average:
            self._state.average.follow(optimizer.iterations)
        return counted

    def _in_slices(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """The sums of a batch and its gradients, computed slice after slice to hold the activations of one at a time.

        A loop of TensorFlow's would be a smaller graph, but replicas cannot meet inside one, and batch normalisation
        makes them meet.
        """
        counted, gradients = self._gradients(self._slice(batch, 0))
        for number in range(1, self._slices):
            with tf.control_dependencies(gradients):  # not before the slice before is done with
                more, further = self._gradients(self._slice(batch, number))
            counted += more
            gradients = [one + other for one, other in zip(gradients, further, strict=True)]
        return counted, gradients

    def _slice(self, batch: Batch, number: int) -> Batch:
        first = number * self._slice_size
        return tf.nest.map_structure(lambda values: values[first : first + self._slice_size], batch)

    def _gradients(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        model, task, weights = self._state.model, self._state.task, batch["weight"]
        targets = batch[task.feature]
        with tf.GradientTape() as tape:
            outputs = self._state.outputs(batch, training=True)
            losses = mixed_losses(batch, task.feature, partial(self._losses, outputs))
            loss = tf.reduce_sum(losses * weights)
            # Gradients are summed over slices and replicas. Divided by the global batch, each example counts the same
            # in every step, on any number of replicas; a last batch that is not full makes a smaller step.
            objective = loss / self._global_batch + sum(model.losses) / self._parts
            scaled = self._state.optimizer.scale_loss(objective)
        gradients = tape.gradient(scaled, model.trainable_variables, unconnected_gradients="zero")
        scores = task.scores(outputs, targets)
        counted = tf.stack([loss, tf.reduce_sum(scores * weights), tf.reduce_sum(weights)])
        return counted, [tf.convert_to_tensor(each) for each in gradients]
