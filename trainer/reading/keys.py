"""The keys of the records that a training run reads, looked up without reading a picture. No TensorFlow."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from shards.keys import read_features
from shards.order import Ints
from trainer.config import TrainConfig
from trainer.reading.plan import global_batches
from trainer.reading.source import Split

RECORDS_AT_ONCE = 16384  # looked up together, so that a shard is opened once for all of them


def read_keys(split: Split, ordinals: Ints) -> list[str]:
    """The key of each record; a record without one has an empty key."""
    needed, places = np.unique(ordinals, return_inverse=True)
    shard_start = np.cumsum([0, *split.shard_records])
    keys: list[str] = []
    for shard in np.unique(np.searchsorted(shard_start, needed, side="right") - 1).tolist():
        begin, end = np.searchsorted(needed, shard_start[shard : shard + 2])
        offsets = split.offsets(shard, needed[begin:end] - shard_start[shard])
        keys += [_text(values) for values in read_features(Path(split.paths[shard]), offsets.tolist(), ("key",))]
    return [keys[place] for place in places]


def _text(values: dict[str, list[bytes] | list[int] | list[float]]) -> str:
    key = next(iter(values.get("key", [])), b"")
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)


def keys_of_steps(config: TrainConfig, split: Split, first: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Yields the steps from `first` up to `end`, each with the keys of its global batch."""
    batches = islice(global_batches(config, split, start_step=first), end - first)
    step = first
    while some := list(islice(batches, max(1, RECORDS_AT_ONCE // config.global_batch))):
        keys = iter(read_keys(split, np.concatenate(some)))
        for batch in some:
            yield step, list(islice(keys, len(batch)))
            step += 1
