"""The tf.Transform graph of a dataset, used for what the build analysed: the normalisation of pixels."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError

Tensor = Any


class Transform(tf.Module):
    """Normalises pictures with the dataset's own graph, in training and inside an exported model alike."""

    def __init__(self, directory: Path) -> None:
        """Loads <dataset>/transform_fn."""
        super().__init__(name="transform")
        try:
            self.loaded = tf.saved_model.load(str(directory))
            function = self.loaded.transform_fn
            self._specs = dict(function.structured_input_signature[0][0])
        except (OSError, ValueError, AttributeError, LookupError) as error:
            raise ShardsmithError(f"{directory} is not a tf.Transform graph: {error}; rebuild the dataset") from error
        if "pixel" not in self._specs:
            raise ShardsmithError(
                f"{directory} has no input 'pixel', only {', '.join(self._specs)}; rebuild the dataset"
            )

    def __call__(self, pictures: Tensor) -> Tensor:
        """uint8 pictures [n, height, width, 3] as normalised float32 of the same shape."""
        # The graph sees a batch of pixels. Rows of different inputs do not meet, so those not needed get no rows.
        feeds = {name: _no_rows(spec) for name, spec in self._specs.items()}
        feeds["pixel"] = tf.reshape(tf.cast(pictures, tf.float32) / 255.0, [-1, 3])
        return tf.reshape(self.loaded.transform_fn(feeds)["pixel"], tf.shape(pictures))


def _no_rows(spec: Any) -> Tensor:
    return tf.zeros([0, *spec.shape[1:]], spec.dtype)
