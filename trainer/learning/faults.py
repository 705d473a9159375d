"""What can go wrong in the middle of training, as errors that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from shards.errors import RestartMe, ShardsmithError
from trainer.quiet import own_words, reason_of
from trainer.reading.source import Source

LOST_PEER = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)


@contextmanager
def explained(source: Source) -> Iterator[None]:
    """Turns TensorFlow's errors about data and other workers into ours."""
    try:
        yield
    except tf.errors.OpError as error:
        if ours := own_words(error.message):
            raise ShardsmithError(ours) from error
        if isinstance(error, LOST_PEER):
            raise RestartMe("another worker has stopped; see its log. Give the same command to resume") from error
        raise ShardsmithError(
            f"a step failed: {reason_of(error.message)}; "
            f"if it is about the data, find the damage with: python -m shards verify {source.directory}"
        ) from error


def bad_loss(loss: float, step: int) -> ShardsmithError:
    """The error for a loss that is not a number."""
    return ShardsmithError(
        f"the loss is {loss} at step {step}; "
        "lower optimizer.learning_rate and train into another output, or resume from an older checkpoint"
    )
