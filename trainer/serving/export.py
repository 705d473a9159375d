"""A SavedModel that takes inputs as they come: decoding, geometry, the dataset's transform and the network."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from shards.errors import ShardsmithError, UsageError
from trainer.config import TrainConfig
from trainer.learning.saved import find_checkpoint
from trainer.learning.state import State, build_state, restore
from trainer.reading.dataset import Share, evaluation_dataset
from trainer.reading.inputs import make_inputs
from trainer.reading.source import Source
from trainer.serving.answers import make_answers
from trainer.serving.lite import LITE, Parity, export_lite

EXPORT = "export"
EXAMPLES = 64  # that a TFLite model must answer like the network
LABELS = "labels.txt"
SERVING, PIXELS = "serving_default", "pixels"  # the names of signatures
Tensor = Any


class ServedModel(tf.Module):
    """Encoded pictures or rows in, answers of the task out."""

    def __init__(self, state: State, *, labels_file: Path | None) -> None:
        """Everything that the graph needs is an attribute, so that it is saved with it."""
        super().__init__(name="served_model")
        self.model, self.transform = state.judged, state.transform
        self._state, self._answers = state, make_answers(state.task)
        if labels_file:
            self.labels_file = tf.saved_model.Asset(str(labels_file))
        self.preprocess = tf.function(self._preprocess, input_signature=[state.inputs.signature])
        beside = state.columns.signature
        self.serve = tf.function(self._serve, input_signature=[state.inputs.signature, *beside])
        self.serve_prepared = tf.function(self._serve_prepared, input_signature=[state.inputs.prepared, *beside])

    @property
    def signatures(self) -> dict[str, Any]:
        """The ways to ask: inputs as they come, and as the network takes them if that is something else."""
        ways = {SERVING: self.serve}
        inputs = self._state.inputs
        return ways if inputs.prepared == inputs.signature else ways | {PIXELS: self.serve_prepared}

    def numbers(self, batch: Tensor) -> Tensor:
        """The answers about prepared inputs as numbers alone: probabilities, or what is predicted."""
        answers = self._serve_prepared(batch)
        return answers["probabilities" if "probabilities" in answers else "prediction"]

    def _preprocess(self, batch: Tensor) -> Tensor:
        """What the network would have been given in training, before the transform."""
        return self._state.inputs.for_serving(batch)

    def _serve(self, batch: Tensor, *columns: Tensor) -> dict[str, Tensor]:
        """What the task answers about each picture or row, given the columns that the network takes beside it."""
        return self._serve_prepared(self.preprocess(batch), *columns)

    def _serve_prepared(self, batch: Tensor, *columns: Tensor) -> dict[str, Tensor]:
        """What the task answers about inputs that are prepared already."""
        given = {self._state.inputs.feature: batch} | dict(zip(self._state.columns.stored, columns, strict=True))
        return self._answers.serve(self._state.outputs(given, training=False))


@dataclass(frozen=True)
class Exported:
    """Which checkpoint was written where; `parity` tells how the TFLite model compares, if one was asked for."""

    checkpoint: str
    directory: Path
    lite: Path | None = None
    parity: Parity | None = None


def export(config: TrainConfig, source: Source, *, checkpoint: str | None, lite: bool = False) -> Exported:
    """Writes <output>/export from a checkpoint (the newest by default), and <output>/model.tflite if asked for."""
    if lite and source.columns:
        raise UsageError(
            "a TFLite model takes pictures or rows alone; leave out --tflite, or train without model.columns"
        )
    found = find_checkpoint(config, checkpoint)
    state = build_state(config, source, tf.distribute.get_strategy())
    restore(state, found)
    target = Path(config.output) / EXPORT
    with tempfile.TemporaryDirectory(prefix="shardsmith-") as scratch:
        served = ServedModel(state, labels_file=_write_labels(source, Path(scratch)))
        _save(served, target)
    if not lite:
        return Exported(found, target)
    path = Path(config.output) / LITE
    return Exported(found, target, path, export_lite(served.numbers, _some_inputs(config, source), path))


def _some_inputs(config: TrainConfig, source: Source) -> Any:
    """Inputs of a few examples that were not learnt from, as the network takes them."""
    names = [split.name for split in source.manifest.splits if split.records]
    split = config.splits.evaluate if config.splits.evaluate in names else config.splits.train
    share = Share(worker=0, workers=1, batch=min(EXAMPLES, source.split(split).records), threads=1)
    batch = next(evaluation_dataset(config, source, share, split=split).as_numpy_iterator())
    return batch[make_inputs(source.form).feature]


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
        tf.saved_model.save(served, str(fresh), signatures=served.signatures)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except (tf.errors.OpError, OSError) as error:
        raise ShardsmithError(f"the model cannot be written to {target}: {error}") from error
    shutil.rmtree(old, ignore_errors=True)
