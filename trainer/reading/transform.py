"""The tf.Transform graph of a dataset, used for what the build analysed: the scale of pixels, features and columns."""

from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError

Tensor = Any
PIXEL, FEATURES = "pixel", "features"


class Transform(tf.Module):
    """Normalises pictures or rows with the dataset's own graph, in training and inside an exported model alike."""

    def __init__(self, directory: Path) -> None:
        """Loads <dataset>/transform_fn."""
        super().__init__(name="transform")
        try:
            self.loaded = tf.saved_model.load(str(directory))
            function = self.loaded.transform_fn
            self._specs = dict(function.structured_input_signature[0][0])
        except (OSError, ValueError, AttributeError, LookupError) as error:
            raise ShardsmithError(
                f"{directory} is not a tf.Transform graph: {error}; mend it with `python -m pipelines repair`"
            ) from error
        if not {PIXEL, FEATURES} & self._specs.keys():
            raise ShardsmithError(
                f"{directory} has no input {PIXEL!r} or {FEATURES!r}, only {', '.join(self._specs)}; "
                "rebuild the dataset"
            )

    def __call__(self, batch: Tensor) -> Tensor:
        """uint8 pictures [n, height, width, 3], or rows [n, features], as normalised float32 of the same shape."""
        if FEATURES in self._specs:
            return self._apply(FEATURES, batch)
        pixels = tf.reshape(tf.cast(batch, tf.float32) / 255.0, [-1, 3])  # the graph sees a batch of pixels
        return tf.reshape(self._apply(PIXEL, pixels), tf.shape(batch))

    def column(self, name: str, values: Tensor) -> Tensor:
        """[n, length] values of an extra column as float32, scaled if the build analysed that column."""
        spec = self._specs.get(name)
        if spec is None or name not in self.loaded.transform_fn.structured_outputs:
            return tf.cast(values, tf.float32)
        rows = tf.cast(tf.reshape(values, [-1, *spec.shape[1:]]), spec.dtype)
        return tf.cast(tf.reshape(self._apply(name, rows), tf.shape(values)), tf.float32)

    def _apply(self, name: str, rows: Tensor) -> Tensor:
        # Rows of different inputs do not meet, so those not needed get no rows.
        feeds = {each: _no_rows(spec) for each, spec in self._specs.items()} | {name: rows}
        return self.loaded.transform_fn(feeds)[name]


def _no_rows(spec: Any) -> Tensor:
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(tf.zeros([0] * spec.shape.rank, spec.dtype))
    return tf.zeros([0, *spec.shape[1:]], spec.dtype)
