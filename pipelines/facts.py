"""Facts: one small row per example, stored as Arrow batches, from which tf.Transform computes what training needs.

The rows hold the picture's channel moments, never its pixels; a million of them are some 40 MB.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.config import ColumnConfig
from pipelines.images import Picture
from pipelines.values import ImageRef
from shards.files import open_atomically

# What every row has. `pixel` is the picture's mean colour: a picture is a batch of pixels, and this is their average.
PIXEL, PIXEL_SQUARE, LABEL_NAME = "pixel", "pixel_square", "label_name"
_ARROW_TYPES = {"int": pa.int64(), "float": pa.float32(), "text": pa.binary()}
_BATCH_ROWS = 10_000


def facts_schema(columns: Mapping[str, ColumnConfig]) -> pa.Schema:
    """The Arrow schema of the rows; tf.Transform wants every value as a list."""
    moments = [(name, pa.list_(pa.float32())) for name in (PIXEL, PIXEL_SQUARE)]
    extras = [(name, pa.list_(_ARROW_TYPES[column.type])) for name, column in columns.items()]
    return pa.schema([*moments, (LABEL_NAME, pa.list_(pa.binary())), *extras])


class FactsWriter:
    """Collects the rows of one shard and writes them as one Arrow file."""

    def __init__(self, columns: Mapping[str, ColumnConfig]) -> None:
        """Rows stay in memory until `save`: they are a hundred bytes each."""
        self._schema = facts_schema(columns)
        self._columns: dict[str, list[list[Any]]] = {name: [] for name in self._schema.names}
        self._extras = list(columns)

    def add(self, ref: ImageRef, picture: Picture) -> None:
        """Adds the row of one example."""
        self._columns[PIXEL].append(list(picture.channel_mean))
        self._columns[PIXEL_SQUARE].append(list(picture.channel_mean_square))
        self._columns[LABEL_NAME].append([ref.label.encode()])
        for name, value in zip(self._extras, ref.columns, strict=True):
            self._columns[name].append([value.encode() if isinstance(value, str) else value])

    def save(self, path: Path) -> None:
        """Writes the file."""
        table = pa.table(self._columns, schema=self._schema)
        with open_atomically(path) as stream, pa.ipc.new_file(stream, self._schema) as writer:
            writer.write_table(table, max_chunksize=_BATCH_ROWS)


def read_facts(path: str) -> list[pa.RecordBatch]:
    """The batches of one shard's facts."""
    with pa.ipc.open_file(path) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
