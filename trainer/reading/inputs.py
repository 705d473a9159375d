"""What a network is given: pictures or rows of numbers, from the record to the tensor, in training and in serving."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.reading.augment import prepare_training
from trainer.reading.crops import draw_windows
from trainer.reading.images import place, prepare
from trainer.reading.raw import decode_raw
from trainer.reading.seeds import seed_of
from trainer.reading.source import Geometry, Rows

Tensor = Any
Record = dict[str, Tensor]


class Inputs(ABC):
    """One kind of input. `feature` is its name in records and batches, `noun` what rates count."""

    feature: ClassVar[str]
    noun: ClassVar[str]

    @property
    @abstractmethod
    def stored(self) -> Any:
        """How the feature is parsed from a record."""

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """What the builder of a network is told."""

    @property
    @abstractmethod
    def signature(self) -> Any:
        """What a served model takes."""

    @property
    @abstractmethod
    def prepared(self) -> Any:
        """The same as the network takes it, before the dataset's transform."""

    def draw(self, records: Record, config: TrainConfig) -> Record:
        """What is drawn for many records at once, because one after another costs too much."""
        return {}

    @abstractmethod
    def for_training(self, record: Record, config: TrainConfig) -> Tensor:
        """One record's input, changed at random as the config says."""

    @abstractmethod
    def for_evaluation(self, record: Record) -> Tensor:
        """One record's input as it is."""

    @abstractmethod
    def for_serving(self, batch: Tensor) -> Tensor:
        """What is given to a served model as training would have given it to the network."""


@dataclass(frozen=True)
class PictureInputs(Inputs):
    """Encoded pictures, given to the network as uint8 of one size."""

    geometry: Geometry
    feature = "image"
    noun = "images"

    @property
    def stored(self) -> Any:
        """The encoded bytes."""
        return tf.io.FixedLenFeature([], tf.string)

    @property
    def shape(self) -> dict[str, Any]:
        """The size (height, width)."""
        return {"image_size": self.geometry.size}

    @property
    def signature(self) -> Any:
        """Encoded pictures."""
        return tf.TensorSpec([None], tf.string, name="image_bytes")

    @property
    def prepared(self) -> Any:
        """Decoded pictures of the model's size."""
        return tf.TensorSpec([None, *self.geometry.size, 3], tf.uint8, name="pixels")

    def draw(self, records: Record, config: TrainConfig) -> Record:
        """The windows of pictures that are larger than the model's input."""
        if self.geometry.box == self.geometry.size:
            return {}
        return draw_windows(seed_of(records, config.seed), self.geometry)

    def for_training(self, record: Record, config: TrainConfig) -> Tensor:
        """The picture, changed by (seed, epoch, record) alone."""
        seed, drawn = seed_of(record, config.seed), record if "window" in record else None
        return prepare_training(record["image"], self.geometry, config.augment, seed=seed, drawn=drawn)

    def for_evaluation(self, record: Record) -> Tensor:
        """The picture without anything random."""
        return prepare(record["image"], self.geometry)

    def for_serving(self, batch: Tensor) -> Tensor:
        """The pictures in files of any kind that the build takes."""
        spec = tf.TensorSpec([*self.geometry.size, 3], tf.uint8)
        return tf.map_fn(lambda data: place(decode_raw(data), self.geometry), batch, fn_output_signature=spec)


@dataclass(frozen=True)
class RowInputs(Inputs):
    """Rows of numbers, given to the network as they are."""

    length: int
    feature = "features"
    noun = "rows"

    @property
    def stored(self) -> Any:
        """The numbers."""
        return tf.io.FixedLenFeature([self.length], tf.float32)

    @property
    def shape(self) -> dict[str, Any]:
        """How many numbers a row has."""
        return {"features": self.length}

    @property
    def signature(self) -> Any:
        """Rows."""
        return tf.TensorSpec([None, self.length], tf.float32, name="features")

    @property
    def prepared(self) -> Any:
        """Rows: nothing has to be done to them."""
        return self.signature

    def for_training(self, record: Record, config: TrainConfig) -> Tensor:
        """The row."""
        return record["features"]

    def for_evaluation(self, record: Record) -> Tensor:
        """The row."""
        return record["features"]

    def for_serving(self, batch: Tensor) -> Tensor:
        """The rows."""
        return tf.identity(batch)


def make_inputs(form: Geometry | Rows) -> Inputs:
    """The inputs of this form."""
    return PictureInputs(form) if isinstance(form, Geometry) else RowInputs(form.length)
