"""What can go wrong in the middle of training, as errors that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.quiet import own_words, reason_of
from trainer.reading.source import Source
from trainer.running.peers import tells_of_a_lost_peer


@contextmanager
def explained(source: Source) -> Iterator[None]:
    """Turns TensorFlow's errors in a step into ours, except those about other workers."""
    try:
        yield
    except tf.errors.OpError as error:
        if ours := own_words(error.message):
            raise ShardsmithError(ours) from error
        if tells_of_a_lost_peer(error):
            raise  # for the command, which knows the cluster
        raise ShardsmithError(
            f"a step failed: {reason_of(error.message)}; "
            f"if it is about the data, find the damage with: python -m shards verify {source.directory}"
        ) from error
