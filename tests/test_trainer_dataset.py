"""The records that tf.data delivers are those of `shards.order`, on any number of workers and from any step."""

import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import ShardsmithError
from shards.order import global_batch
from trainer.config import TrainConfig
from trainer.reading.dataset import (
    Share,
    evaluation_dataset,
    evaluation_records,
    record_features,
    training_dataset,
    training_records,
)
from trainer.reading.source import Split, open_source

RECORDS = 50


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(RECORDS)
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures, "validation": pictures[:20]})


@pytest.fixture(scope="module")
def config(dataset: Path) -> TrainConfig:
    return make_config(
        dataset, global_batch=8, input={"lanes": 4, "run": 3, "shuffle_records": 16}, augment={"shift": 2}
    )


FILLER = -1


def share(worker: int = 0, workers: int = 1, batch: int = 8) -> Share:
    return Share(worker=worker, workers=workers, batch=batch, threads=2)


def delivered(config: TrainConfig, *, steps: int, start: int = 0, worker: int = 0, workers: int = 1) -> Any:
    """[steps, batch] ordinals, checked against the keys that were read; FILLER for what does not count."""
    source = open_source(config)
    size = config.global_batch // workers
    records = training_records(config, source, share(worker, workers), start_step=start)
    rows = list(islice(records.as_numpy_iterator(), steps * size))
    assert [row["key"].decode() for row in rows] == [f"train/{row['ordinal']}" for row in rows]
    return np.reshape([row["ordinal"] if row["weight"] else FILLER for row in rows], [steps, size])


def test_training_follows_the_order(config: TrainConfig) -> None:
    records = open_source(config).split("train").shard_records
    expected = [global_batch(records, config.order, step=step).tolist() for step in range(15)]  # more than two epochs
    found = delivered(config, steps=15)
    assert [[ordinal for ordinal in batch if ordinal != FILLER] for batch in found.tolist()] == expected
    assert FILLER in found


def test_two_workers_share_each_global_batch(config: TrainConfig) -> None:
    alone = delivered(config, steps=9)
    together = np.concatenate([delivered(config, steps=9, worker=i, workers=2) for i in range(2)], axis=1)
    np.testing.assert_array_equal(np.sort(together), np.sort(alone))


@pytest.mark.parametrize("start", [1, 5, 6, 8])
def test_resuming_seeks(config: TrainConfig, start: int) -> None:
    np.testing.assert_array_equal(delivered(config, steps=3, start=start), delivered(config, steps=start + 3)[start:])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_evaluation_counts_each_example_once(config: TrainConfig, workers: int) -> None:
    source = open_source(config)
    split, batch = source.split("validation"), 8
    steps = -(-split.records // (batch * workers))
    rows = []
    for worker in range(workers):
        records = evaluation_records(
            split, share(worker, workers), features=record_features(source), worker_batch=batch
        )
        rows += list(islice(records.as_numpy_iterator(), steps * batch))
    counted = [row["key"].decode() for row in rows if row["weight"] == 1]
    assert sorted(counted) == sorted(f"validation/{n}" for n in range(20))
    assert {row["weight"] for row in rows} <= {0.0, 1.0}


def test_evaluation_passes_are_equal(config: TrainConfig) -> None:
    source = open_source(config)
    steps = -(-20 // share().batch)
    batches = list(
        islice(evaluation_dataset(config, source, share(), split="validation").as_numpy_iterator(), 2 * steps)
    )
    for first, second in zip(batches[:steps], batches[steps:], strict=True):
        np.testing.assert_array_equal(first["image"], second["image"])
    assert sum(batch["weight"].sum() for batch in batches[:steps]) == 20


def test_batches_are_uint8_of_the_models_size(config: TrainConfig) -> None:
    batch = next(iter(training_dataset(config, open_source(config), share(batch=4), start_step=0)))
    assert batch["image"].shape == (4, 8, 8, 3)
    assert batch["image"].dtype == tf.uint8
    assert batch["label"].dtype == tf.int64


def images(config: TrainConfig, *, start: int, steps: int) -> Any:
    batches = training_dataset(config, open_source(config), share(), start_step=start).as_numpy_iterator()
    return np.stack([batch["image"] for batch in islice(batches, steps)])


def test_augmented_batches_are_reproducible_and_resumable(config: TrainConfig) -> None:
    once = images(config, start=0, steps=5)
    np.testing.assert_array_equal(once, images(config, start=0, steps=5))
    np.testing.assert_array_equal(once[3:], images(config, start=3, steps=2))


def test_a_record_changes_with_the_epoch(config: TrainConfig) -> None:
    order, pictures = delivered(config, steps=12), images(config, start=0, steps=12)
    seen: dict[int, list[Any]] = {}
    for ordinal, picture in zip(order.ravel(), pictures.reshape(-1, 8, 8, 3), strict=True):
        seen.setdefault(int(ordinal), []).append(picture)
    twice = [pair for pair in seen.values() if len(pair) == 2]
    assert len(twice) > 30
    assert sum(not np.array_equal(one, other) for one, other in twice) > len(twice) / 2


MEASURE = """
import sys
from itertools import islice
from pathlib import Path
from trainer_data import make_config
from trainer.reading.dataset import Share, training_dataset
from trainer.reading.source import open_source
from trainer.running.strategy import keep_freed_memory

keep_freed_memory()
dataset, window, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = make_config(dataset, global_batch=40, input__lanes=4, input__shuffle_records=window)
share = Share(worker=0, workers=1, batch=40, threads=2)
batches = iter(training_dataset(config, open_source(config), share, start_step=0))
for _ in islice(batches, steps):
    pass
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) * 1024)
"""


def peak_memory(dataset: Path, *, window: int, steps: int) -> int:
    """The most bytes that a process needs that reads so many batches of 40."""
    command = [sys.executable, "-c", MEASURE, str(dataset), str(window), str(steps)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    return int(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_memory_is_that_of_the_window(tmp_path: Path) -> None:
    pictures, steps = random_pictures(40, size=(96, 96)), 400
    stored = {"shards": 8, "resize": {"mode": "exact", "size": 96}}
    small = write_dataset(tmp_path / "small", {"train": pictures * 4}, **stored)
    large = write_dataset(tmp_path / "large", {"train": pictures * 200}, **stored)
    size = sum(shard.stat().st_size for shard in large.glob("train/*.tfrecord"))
    assert size > 150e6
    base = peak_memory(small, window=160, steps=steps)
    assert peak_memory(large, window=160, steps=steps) < base + size / 3
    assert peak_memory(large, window=8000, steps=steps) > base + size  # so the measure sees records that are held


def test_truncated_shard_is_noticed(config: TrainConfig, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, {"train": random_pictures(8)}, shards=1)
    shard = dataset / "train/train-00000.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-500])
    records = training_records(config, open_source(make_config(dataset)), share(), start_step=0)
    with pytest.raises(tf.errors.OpError):
        list(islice(records, 8))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "lists 0 records, the manifest 8"), ("0 x\n", "cannot be read: not one 'offset size' line per record")],
)
def test_damaged_index(tmp_path: Path, text: str, message: str) -> None:
    index = tmp_path / "train.idx"
    index.write_text(text)
    split = Split(name="train", paths=("",), indexes=(str(index),), shard_records=(8,))
    with pytest.raises(ShardsmithError, match=message):
        split.extent(0, 0, 1)
