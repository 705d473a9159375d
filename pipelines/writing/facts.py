"""Facts: one small row per example, stored as Arrow batches, from which tf.Transform computes what training needs.

The rows hold a picture's channel moments, never its pixels; a million of them are some 50 MB. They stay with the
dataset: whatever changes a part of it later (a retry, an append) analyses all of it again without opening a picture.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.config import BuildConfig
from pipelines.values import Content
from shards.files import open_atomically

# `pixel` is the picture's mean colour: a picture is a batch of pixels, and this is their average.
PIXEL, PIXEL_SQUARE, FEATURES, LABEL_NAME, TARGET = "pixel", "pixel_square", "features", "label_name", "target"
_ARROW_TYPES = {"int": pa.int64(), "float": pa.float32(), "text": pa.binary()}
_BATCH_ROWS = 10_000


def facts_schema(config: BuildConfig, content: Content) -> pa.Schema:
    """The Arrow schema of the rows that tf.Transform sees; it wants every value as a list."""
    payload = [PIXEL, PIXEL_SQUARE] if content.is_images else [FEATURES]
    fields = [(name, pa.list_(pa.float32())) for name in payload]
    if config.labels.kind in ("single", "multi"):
        fields.append((LABEL_NAME, pa.list_(pa.binary())))
    elif config.labels.kind == "regression":
        fields.append((TARGET, pa.list_(pa.float32())))
    fields += [(name, pa.list_(_ARROW_TYPES[column.type])) for name, column in config.scalar_columns.items()]
    return pa.schema(fields)


class RowWriter:
    """Collects rows, one for each example of a shard, and writes them as one Arrow file."""

    def __init__(self, schema: pa.Schema) -> None:
        """Rows stay in memory until `save`, packed: a hundred bytes for a picture, four for a feature."""
        self._schema = schema
        self._columns: list[list[Any]] = [[] for _ in self._schema.names]
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: Sequence[Any]) -> None:
        """Adds a row."""
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if len(self._columns[-1]) == _BATCH_ROWS:
            self._pack()

    def _pack(self) -> None:
        """Python's own floats take eight times the room."""
        self._batches.append(pa.record_batch(self._columns, schema=self._schema))
        self._columns = [[] for _ in self._schema.names]

    def save(self, path: Path) -> None:
        """Writes the file."""
        if self._columns[-1]:
            self._pack()
        with open_atomically(path) as stream, pa.ipc.new_file(stream, self._schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)


def read_facts(path: str) -> list[pa.RecordBatch]:
    """The batches of one shard's facts."""
    with pa.ipc.open_file(path) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
