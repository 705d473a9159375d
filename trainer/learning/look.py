"""Training pictures as the network is going to see them, for a person to look at before training."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from shards.samples import Sample
from trainer.config import TrainConfig
from trainer.learning.mixing import OTHER, SHARE, Mixer
from trainer.learning.task import make_task
from trainer.reading.dataset import Share, training_dataset
from trainer.reading.inputs import make_inputs
from trainer.reading.keys import read_keys
from trainer.reading.source import Source

Batch = dict[str, Any]


def training_samples(config: TrainConfig, source: Source, *, start_step: int, threads: int) -> Iterator[Sample]:
    """Yields the pictures from the batch of `start_step` on, changed and mixed; each with its label and its key."""
    share = Share(worker=0, workers=1, batch=config.global_batch, threads=threads)
    given, target = make_inputs(source.form).feature, make_task(source).feature
    mix, split = Mixer(config, given=given, target=target), source.split(config.splits.train)
    for batch in training_dataset(config, source, share, start_step=start_step):
        mixed = {name: values.numpy() for name, values in mix(batch).items()}
        keys = read_keys(split, mixed["ordinal"])
        for place in np.flatnonzero(mixed["weight"]).tolist():
            caption = _caption(mixed, place, target, source)
            yield Sample(caption=caption, key=keys[place], image=_encode(mixed[given][place]))


def _caption(batch: Batch, place: int, target: str, source: Source) -> str:
    own = _name(batch[target][place], source)
    if OTHER not in batch:
        return own
    share = float(batch[SHARE][place])
    return f"{share:.2f} {own} + {_name(batch[OTHER][place], source)}"


def _name(target: Any, source: Source) -> str:
    """What a target says, in words."""
    if source.label_kind == "single":
        return source.labels[int(target)]
    if source.label_kind == "multi":
        return ", ".join(source.labels[number] for number in np.flatnonzero(target)) or "-"
    return ", ".join(f"{number:.4g}" for number in target)


def _encode(pixels: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.round(pixels).astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()
