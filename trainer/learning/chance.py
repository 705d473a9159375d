"""Random layers: each replica draws for itself, and a restart goes on with the same draws."""

from typing import Any

import tensorflow as tf


def draw_apart(model: Any) -> None:
    """Lets random layers draw other numbers on each replica.

    The states of their seeds are equal everywhere, so that one checkpoint restores all replicas; without this they
    would drop the same neurons for different pictures. The number of the replica is mixed into what is drawn, not into
    what is kept.
    """
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            generator.next = _apart(generator.next)


def _apart(draw: Any) -> Any:
    def next_seed(ordered: bool = True) -> Any:
        seed = draw(ordered)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return seed
        narrow = tf.cast(seed % tf.int32.max, tf.int32)
        return tf.random.experimental.stateless_fold_in(narrow, context.replica_id_in_sync_group)

    return next_seed
