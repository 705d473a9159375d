"""Averages of the weights over the steps: smoother than the last weights, and judged and exported in their place."""

from typing import Any

import tensorflow as tf

Model = Any
Tensor = Any


class Average:
    """A second network of the same make, whose weights follow those of the one that is trained.

    The moving statistics of batch normalisation are averaged too: they must fit the weights before them. The decay
    grows from 0.1 with the number of updates, so that the first, random weights are soon forgotten.
    """

    def __init__(self, trained: Model, twin: Model, *, decay: float) -> None:
        """`twin` begins as a copy of `trained`."""
        self.model = twin
        self._trained, self._decay = trained, decay
        self.begin()

    def begin(self) -> None:
        """Takes the weights as they are."""
        self.model.set_weights(self._trained.get_weights())

    def follow(self, updates: Tensor) -> None:
        """Moves towards the trained weights, of which this is the state after so many updates. For replicas."""
        done = tf.cast(updates, tf.float32)
        share = 1.0 - tf.minimum(self._decay, (1.0 + done) / (10.0 + done))
        tf.distribute.get_replica_context().merge_call(self._move, args=(share,))

    def _move(self, strategy: Any, share: Tensor) -> None:
        for average, weight in zip(self.model.weights, self._trained.weights, strict=True):
            strategy.extended.update(average.value, _move_by, args=(weight.value, share), group=False)


def _move_by(average: Any, weight: Any, share: Tensor) -> Any:
    return average.assign_add((weight - average) * share)
