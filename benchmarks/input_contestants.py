"""The contestants of `benchmarks input` that live in the project's environment, each a process that serves batches.

Run as `python -m benchmarks.input_contestants NAME CASE DATASET SIDE BATCH WINDOW`.

- `ours`: what the trainer reads: exact order, checks, decoding, random changes, batches.
- `plain`: `interleave` and `shuffle` without any order, and a parallel map with the trainer's own decoding and changes.
- `tfds`: TensorFlow Datasets on the same directory, with its own decoding; shuffled before it, as its guide advises.
- `bare`: simplejpeg (libjpeg-turbo), fast DCT and smooth upsampling as TensorFlow's default, whole pictures, of bytes
  that are in memory already; one process per core, and nothing else.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import simplejpeg

from benchmarks.input_peers import serve, taking
from shards.example import decode_example
from shards.manifest import read_manifest
from shards.records import read_records
from shards.settings import validate
from trainer.config import TrainConfig
from trainer.reading.source import open_source

CASES: dict[str, dict[str, Any]] = {"crop": {"crop": True}, "resized": {"resized_crop": {}}}
OPEN_FILES = 16
DECODED_TOGETHER = 64


def make_config(dataset: Path, case: str, *, side: int, batch: int, window: int) -> TrainConfig:
    """The config of a run on these pictures."""
    values = {
        "dataset": str(dataset),
        "output": "nowhere",
        "epochs": 1,
        "global_batch": batch,
        "evaluate_every_epochs": None,
        "input": {"shuffle_records": window},
        "model": {"image_size": side},
        "augment": CASES[case],
    }
    return validate(TrainConfig, values, place="the benchmark")


def ours(config: TrainConfig) -> Iterator[Any]:
    """The trainer's input."""
    from trainer.reading.dataset import Share, training_dataset

    share = Share(worker=0, workers=1, batch=config.global_batch, threads=_cores())
    return iter(training_dataset(config, open_source(config), share, start_step=0))


def plain(config: TrainConfig) -> Iterator[Any]:
    """The usual tf.data pipeline, in no order, with the trainer's decoding."""
    import tensorflow as tf

    from trainer.reading.dataset import record_features
    from trainer.reading.inputs import make_inputs

    source = open_source(config)
    inputs, features = make_inputs(source.form), record_features(source)
    paths = list(source.split("train").paths)

    def example(number: Any, serialized: Any) -> dict[str, Any]:
        record = tf.io.parse_single_example(serialized, features)
        place = {"epoch": tf.constant(0, tf.int64), "ordinal": number, "occurrence": tf.constant(0, tf.int64)}
        drawn = inputs.draw(place, config)
        return {"image": inputs.for_training(record | place | drawn, config), "label": record["label"]}

    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    records = files.interleave(
        tf.data.TFRecordDataset, cycle_length=OPEN_FILES, num_parallel_calls=_cores(), deterministic=False
    )
    made = (
        records.shuffle(config.input.shuffle_records)
        .enumerate()
        .map(example, num_parallel_calls=_cores(), deterministic=False)
    )
    return _iterate(made.batch(config.global_batch, drop_remainder=True), config)


def tfds(config: TrainConfig) -> Iterator[Any]:
    """TensorFlow Datasets, decoding after shuffling."""
    import tensorflow as tf
    import tensorflow_datasets

    builder = tensorflow_datasets.builder_from_directory(config.dataset)
    records = builder.as_dataset(
        split="train", shuffle_files=True, decoders={"image": tensorflow_datasets.decode.SkipDecoding()}
    )
    side = config.model.image_size
    assert side

    def example(record: dict[str, Any]) -> dict[str, Any]:
        picture = builder.info.features["image"].decode_example(record["image"])
        if config.augment.crop:
            picture = tf.image.random_crop(picture, [*side, 3])
        else:
            whole = tf.zeros([1, 0, 4])
            box = tf.image.sample_distorted_bounding_box(
                tf.shape(picture), whole, area_range=(0.08, 1.0), use_image_if_no_bounding_boxes=True
            )
            pixels = tf.image.resize(tf.slice(picture, box.begin, box.size), side)
            picture = tf.cast(pixels, tf.uint8)
        return {"image": tf.ensure_shape(picture, [*side, 3]), "label": record["label"]}

    made = records.repeat().shuffle(config.input.shuffle_records).map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(made.batch(config.global_batch, drop_remainder=True).prefetch(config.input.prefetch))


def _iterate(batches: Any, config: TrainConfig) -> Iterator[Any]:
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = False  # as in the trainer; the numbers of threads are given
    return iter(batches.prefetch(config.input.prefetch).with_options(options))


def bare(config: TrainConfig) -> Callable[[int], object]:
    """Takes batches of whole pictures, which are thrown away where they are decoded."""
    pictures = read_pictures(Path(config.dataset), limit=config.input.shuffle_records)
    pool = multiprocessing.get_context("spawn").Pool(_cores(), initializer=_remember, initargs=(pictures,))

    def take(count: int) -> None:
        starts = range(0, count * config.global_batch, DECODED_TOGETHER)
        for _ in pool.imap_unordered(_decode_from, starts):
            pass

    return take


_pictures: list[bytes] = []  # of a decoding process


def _remember(pictures: list[bytes]) -> None:
    _pictures[:] = pictures


def _decode_from(start: int) -> None:
    for number in range(start, start + DECODED_TOGETHER):
        simplejpeg.decode_jpeg(_pictures[number % len(_pictures)], "RGB", fastdct=True, fastupsample=False)


def read_pictures(dataset: Path, *, limit: int) -> list[bytes]:
    """The encoded pictures of the first records."""
    return [picture for _, picture in islice(read_examples(dataset), limit)]


def read_examples(dataset: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (label, encoded picture) of the training split in stored order."""
    for shard in read_manifest(dataset).split("train").shards:
        with (dataset / shard.path).open("rb") as stream:
            for _, data in read_records(stream):
                example: dict[str, Any] = decode_example(data)
                yield example["label"][0], example["image"][0]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def main(name: str, case: str, dataset: str, side: str, batch: str, window: str) -> None:
    """Serves one contestant."""
    config = make_config(Path(dataset), case, side=int(side), batch=int(batch), window=int(window))
    if name == "bare":
        serve(bare(config))
        return
    from trainer.running.strategy import keep_freed_memory

    keep_freed_memory()  # as the trainer does
    serve(taking({"ours": ours, "plain": plain, "tfds": tfds}[name](config)))


if __name__ == "__main__":
    main(*sys.argv[1:])
