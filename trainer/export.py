"""A SavedModel that takes files as they come: decoding, geometry, the dataset's transform and the network."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.images import prepare
from trainer.source import Geometry, Source
from trainer.state import State, build_state, find_checkpoint, restore

EXPORT = "export"
LABELS = "labels.txt"
Tensor = Any


class ServedModel(tf.Module):
    """Encoded pictures in, classes and probabilities out."""

    def __init__(self, state: State, *, geometry: Geometry, labels_file: Path) -> None:
        """Everything that the graph needs is an attribute, so that it is saved with it."""
        super().__init__(name="served_model")
        self.model, self.transform = state.model, state.transform
        self.labels_file = tf.saved_model.Asset(str(labels_file))
        self._labels = tf.constant(labels_file.read_text(encoding="utf-8").splitlines())
        self._geometry = geometry

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def preprocess(self, image_bytes: Tensor) -> Tensor:
        """The uint8 pictures that the network would have been given in training."""
        spec = tf.TensorSpec([*self._geometry.size, 3], tf.uint8)
        return tf.map_fn(lambda data: prepare(data, self._geometry), image_bytes, fn_output_signature=spec)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(self, image_bytes: Tensor) -> dict[str, Tensor]:
        """The most likely class of each picture, its probability, and all classes with theirs."""
        logits = self.model(self.transform(self.preprocess(image_bytes)), training=False)
        probabilities = tf.nn.softmax(logits)
        return {
            "label": tf.gather(self._labels, tf.argmax(probabilities, axis=1)),
            "probability": tf.reduce_max(probabilities, axis=1),
            "probabilities": probabilities,
            # Once per picture, because serving systems split answers along the first axis.
            "classes": tf.tile(self._labels[tf.newaxis], [tf.shape(image_bytes)[0], 1]),
        }


def export(config: TrainConfig, source: Source, *, checkpoint: str | None) -> tuple[str, Path]:
    """Writes <output>/export from a checkpoint (the newest by default); returns the checkpoint and the directory."""
    found = find_checkpoint(config, checkpoint)
    state = build_state(config, source, tf.distribute.get_strategy())
    restore(state, found)
    target = Path(config.output) / EXPORT
    with tempfile.TemporaryDirectory(prefix="shardsmith-") as scratch:
        labels_file = Path(scratch) / LABELS
        labels_file.write_text("".join(f"{label}\n" for label in source.labels), encoding="utf-8")
        _save(ServedModel(state, geometry=source.geometry, labels_file=labels_file), target)
    return found, target


def _save(served: ServedModel, target: Path) -> None:
    """Saves under another name first: a model server that watches `target` never sees half a model."""
    fresh, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    for left_over in (fresh, old):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        tf.saved_model.save(served, str(fresh), signatures={"serving_default": served.serve})
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except (tf.errors.OpError, OSError) as error:
        raise ShardsmithError(f"the model cannot be written to {target}: {error}") from error
    shutil.rmtree(old, ignore_errors=True)
