"""The class of every record of a split, for drawing classes equally often: read from the shards, without pictures."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from shards.errors import ShardsmithError
from shards.keys import read_features
from shards.order import Classes
from trainer.config import TrainConfig
from trainer.reading.source import Split

LABEL = "label"


@lru_cache(maxsize=2)
def read_classes(split: Split) -> Classes:
    """The class ids of the records in stored order, 4 bytes each; refuses shards that are not what was counted."""
    classes = np.fromiter(_classes(split), np.int32, count=split.records)
    present = len(np.unique(classes))
    if present != split.classes:
        raise ShardsmithError(
            f"split {split.name!r} has records of {present} classes, the manifest counts {split.classes}; "
            "find the damage with `python -m shards verify`"
        )
    return classes


def classes_to_balance(config: TrainConfig, split: Split) -> Classes | None:
    """The classes that a training run draws equally often; None if it draws every example once."""
    return read_classes(split) if config.input.sampling == "balanced" else None


def _classes(split: Split) -> Iterator[int]:
    for shard, path in enumerate(split.paths):
        for values in read_features(Path(path), split.offsets(shard).tolist(), {LABEL}):
            label = values.get(LABEL, [])
            if len(label) != 1 or not isinstance(label[0], int) or label[0] < 0:
                raise ShardsmithError(
                    f"shard {path} has a record with the label {label}, not one class; "
                    "find the damage with `python -m shards verify`"
                )
            yield label[0]
