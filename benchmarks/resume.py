"""What it costs a restarted run to get to its place: early in an epoch, late in it, and if it had to read up to there.

Timed from asking for the input to having the first batch, decoded, with nothing known of the dataset. The pictures are
small copies of the given ones: little to decode, so that the seeking shows.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import cv2
import numpy as np
import simplejpeg

from benchmarks.durable_verify import LABELS, make_manifest
from benchmarks.preprocess import find_jpegs
from benchmarks.report import Benchmark, Row
from shards.errors import ShardsmithError, UsageError
from shards.example import encode_example
from shards.manifest import MANIFEST, ShardEntry
from shards.order import global_batch
from shards.records import RecordWriter

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.reading.source import Source

SIDE, SHARDS, BATCH = 32, 16, 64
_QUALITY = 90
_MOST_PICTURES = 200


@dataclass(frozen=True)
class Seeks:
    """Seconds to the first batch at each place of the epoch, round by round; `replay` reads up to the last place."""

    early: Sequence[float]
    late: Sequence[float]
    replay: float


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `resume`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="any folder with JPEG files, at any depth")
    parser.add_argument("--records", type=int, default=100_000, help="records in the epoch (100000)")
    parser.add_argument("--rounds", type=int, default=15, help="how often each place is sought (15)")


def run(arguments: Namespace) -> list[Row]:
    """Measures and returns the rows."""
    if arguments.records < 100 * BATCH:
        raise UsageError(f"--records {arguments.records}: at least {100 * BATCH} are needed")
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: at least 1 is needed")
    pictures = [make_small(path) for path in find_jpegs(arguments.folder, limit=_MOST_PICTURES, side=SIDE)]
    with tempfile.TemporaryDirectory(prefix="shardsmith_bench_") as folder:
        write_dataset(Path(folder), pictures, records=arguments.records)
        seeks = measure_seeks(Path(folder), rounds=arguments.rounds)
    return [
        Row("resume.records", arguments.records, "records"),
        Row("resume.seek.at_1_percent", median(seeks.early), "s"),
        Row("resume.seek.at_99_percent", median(seeks.late), "s"),
        Row("resume.seek.late_vs_early", median(seeks.late) / median(seeks.early), "ratio", "<= 1.1"),
        Row("resume.replay.at_99_percent", seeks.replay, "s"),
    ]


def measure_seeks(directory: Path, *, rounds: int) -> Seeks:
    """Seeks both places in turn, so that what slows the machine down for a while slows down both."""
    from trainer.config import TrainConfig
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    config = TrainConfig(dataset=str(directory), output="nowhere", epochs=1, global_batch=BATCH)
    steps = config.order.steps_per_epoch(open_source(directory).split("train").records)
    early, late = steps // 100, steps * 99 // 100
    seek(config, directory, early)  # the first use of TensorFlow is slower
    times = [(seek(config, directory, early), seek(config, directory, late)) for _ in range(rounds)]
    return Seeks([each[0] for each in times], [each[1] for each in times], replay(config, directory, late))


def seek(config: "TrainConfig", directory: Path, step: int) -> float:
    """Seconds from nothing to the batch of a step, which must be the right one."""
    from trainer.reading.dataset import Share, training_dataset

    started = time.monotonic()
    source = open_source(directory)
    iterator = iter(training_dataset(config, source, Share(0, 1, BATCH, 2), start_step=step))
    batch = next(iterator)
    seconds = time.monotonic() - started
    expected = global_batch(source.split("train").shard_records, config.order, step=step)
    if not np.array_equal(batch["ordinal"].numpy(), expected):
        raise ShardsmithError(f"step {step} began with other records than the order says")
    return seconds


def replay(config: "TrainConfig", directory: Path, step: int) -> float:
    """Seconds to read, but not to decode, all records before a step."""
    from trainer.reading.dataset import Share, training_records

    started = time.monotonic()
    records = training_records(config, open_source(directory), Share(0, 1, BATCH, 2), start_step=0)
    next(iter(records.skip(step * BATCH)))
    return time.monotonic() - started


def open_source(directory: Path) -> "Source":
    """The dataset, opened anew: indexes that were read once are remembered."""
    from shards.manifest import read_manifest
    from trainer.reading.source import Geometry, Source

    form = Geometry(mode="exact", box=(SIDE, SIDE), size=(SIDE, SIDE))
    return Source(directory=directory, manifest=read_manifest(directory), form=form)


def make_small(path: str) -> bytes:
    """The picture in the size that is stored."""
    pixels = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB")
    return simplejpeg.encode_jpeg(cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA), _QUALITY)


def write_dataset(directory: Path, pictures: Sequence[bytes], *, records: int) -> None:
    """Writes a training split that shows the pictures in turn."""
    (directory / "train").mkdir(parents=True)
    entries = [_write_shard(directory, shard, pictures, records=records) for shard in range(SHARDS)]
    (directory / MANIFEST).write_text(make_manifest(entries).to_json(), encoding="utf-8")
    print(f"wrote {records:,} records into {SHARDS} shards", file=sys.stderr, flush=True)


def _write_shard(directory: Path, shard: int, pictures: Sequence[bytes], *, records: int) -> ShardEntry:
    name = f"train/train-{shard:05}"
    with (directory / f"{name}.tfrecord").open("wb") as stream, (directory / f"{name}.idx").open("wb") as index:
        writer = RecordWriter(stream, index)
        for number in range(shard, records, SHARDS):
            label = writer.records % len(LABELS)
            writer.write(
                encode_example(
                    {
                        "image": pictures[number % len(pictures)],
                        "key": f"{number:07}.jpg".encode(),
                        "label": [label],
                        "label_name": LABELS[label].encode(),
                        "height": [SIDE],
                        "width": [SIDE],
                    }
                )
            )
    return ShardEntry.of(name, writer.finish())


BENCHMARK = Benchmark("resume", "seek a place in an epoch, early, late and by reading up to it", add_arguments, run)
