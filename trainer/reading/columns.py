"""Numeric columns that a network is given beside the picture or row, from the record to the tensor."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from shards.manifest import FeatureEntry
from trainer.reading.transform import Transform

Tensor = Any
Features = dict[str, Any]
PREFIX = "column/"  # in records and batches, where a column of any name must not meet our own
_TYPES = {"int64": tf.int64, "float": tf.float32}


@dataclass(frozen=True)
class Columns:
    """Columns of numbers, in the order in which they are joined."""

    entries: tuple[FeatureEntry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names in the dataset and in a served model."""
        return tuple(entry.name for entry in self.entries)

    @property
    def width(self) -> int:
        """How many numbers all columns have together."""
        return sum(entry.length or 1 for entry in self.entries)

    @property
    def shape(self) -> dict[str, Any]:
        """What the builder of a network is told: nothing, if there are no columns."""
        return {"columns": self.width} if self.entries else {}

    @property
    def stored(self) -> Features:
        """How the columns are parsed from a record."""
        return {
            PREFIX + entry.name: tf.io.FixedLenFeature([entry.length or 1], _TYPES[entry.type])
            for entry in self.entries
        }

    @property
    def signature(self) -> list[Any]:
        """What a served model takes: a number per example, or `length` of them."""
        return [
            tf.TensorSpec([None, *([entry.length] if (entry.length or 1) > 1 else [])], _TYPES[entry.type], entry.name)
            for entry in self.entries
        ]

    def of(self, record: dict[str, Tensor]) -> dict[str, Tensor]:
        """The columns among the features of a record."""
        return {name: record[name] for name in self.stored}

    def joined(self, batch: dict[str, Tensor], transform: Transform) -> Tensor:
        """[n, width]: each column of a batch as the dataset's transform scales it, side by side."""
        scaled = []
        for entry in self.entries:
            values = tf.reshape(batch[PREFIX + entry.name], [-1, entry.length or 1])
            scaled.append(transform.column(entry.name, values))
        return tf.concat(scaled, axis=1)


def parse_records(serialized: Tensor, features: Features) -> dict[str, Tensor]:
    """Parses serialized records; what is called `column/NAME` here is stored as `NAME`."""
    parsed = tf.io.parse_example(serialized, {name.removeprefix(PREFIX): each for name, each in features.items()})
    return {name: parsed[name.removeprefix(PREFIX)] for name in features}
