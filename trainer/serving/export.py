"""A SavedModel that takes inputs as they come: decoding, geometry, the dataset's transform and the network."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.learning.saved import find_checkpoint
from trainer.learning.state import State, build_state, restore
from trainer.reading.source import Source
from trainer.serving.answers import make_answers

EXPORT = "export"
LABELS = "labels.txt"
Tensor = Any


class ServedModel(tf.Module):
    """Encoded pictures or rows in, answers of the task out."""

    def __init__(self, state: State, *, labels_file: Path | None) -> None:
        """Everything that the graph needs is an attribute, so that it is saved with it."""
        super().__init__(name="served_model")
        self.model, self.transform = state.judged, state.transform
        self._inputs, self._answers = state.inputs, make_answers(state.task)
        if labels_file:
            self.labels_file = tf.saved_model.Asset(str(labels_file))
        signature = [state.inputs.signature]
        self.preprocess = tf.function(self._preprocess, input_signature=signature)
        self.serve = tf.function(self._serve, input_signature=signature)

    def _preprocess(self, batch: Tensor) -> Tensor:
        """What the network would have been given in training, before the transform."""
        return self._inputs.for_serving(batch)

    def _serve(self, batch: Tensor) -> dict[str, Tensor]:
        """What the task answers about each picture or row."""
        outputs = self.model(self.transform(self.preprocess(batch)), training=False)
        return self._answers.serve(tf.cast(outputs, tf.float32))


def export(config: TrainConfig, source: Source, *, checkpoint: str | None) -> tuple[str, Path]:
    """Writes <output>/export from a checkpoint (the newest by default); returns the checkpoint and the directory."""
    found = find_checkpoint(config, checkpoint)
    state = build_state(config, source, tf.distribute.get_strategy())
    restore(state, found)
    target = Path(config.output) / EXPORT
    with tempfile.TemporaryDirectory(prefix="shardsmith-") as scratch:
        _save(ServedModel(state, labels_file=_write_labels(source, Path(scratch))), target)
    return found, target


def _write_labels(source: Source, directory: Path) -> Path | None:
    """The labels as a text file; none for a regression."""
    if not source.labels:
        return None
    path = directory / LABELS
    path.write_text("".join(f"{label}\n" for label in source.labels), encoding="utf-8")
    return path


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
