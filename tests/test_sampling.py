"""Balanced sampling, from the labels in the shards to the records that tf.data delivers."""

import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from shards.errors import ShardsmithError, UsageError
from shards.order import global_batch
from trainer.config import TrainConfig
from trainer.reading.checks import check_training
from trainer.reading.dataset import Share, training_dataset, training_records
from trainer.reading.plan import global_batches, training_plan
from trainer.reading.sampling import read_classes
from trainer.reading.source import open_source

LABELS = [0] * 30 + [1] * 6 + [2] * 3  # an epoch draws each 13 times: 39 in all


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = [(data, label) for (data, _), label in zip(random_pictures(len(LABELS)), LABELS, strict=True)]
    shuffled = [pictures[n] for n in np.random.default_rng(1).permutation(len(pictures))]
    labels = ("a", "b", "c", "never seen")
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": shuffled, "validation": shuffled}, labels=labels)


@pytest.fixture(scope="module")
def config(dataset: Path) -> TrainConfig:
    values = {"lanes": 4, "run": 3, "shuffle_records": 16, "sampling": "balanced"}
    return make_config(dataset, global_batch=8, input=values, augment={"shift": 3})


def delivered(config: TrainConfig, *, steps: int, start: int = 0, worker: int = 0, workers: int = 1) -> list[Any]:
    """One worker's batches of records, as the training input reads them."""
    share = Share(worker=worker, workers=workers, batch=config.global_batch // workers, threads=2)
    size = config.global_batch // workers
    records = training_records(config, open_source(config), share, start_step=start).as_numpy_iterator()
    rows = list(islice(records, steps * size))
    assert all(row["key"].decode() == f"train/{row['ordinal']}" for row in rows)
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def draws(batch: list[Any]) -> list[tuple[int, int, int]]:
    return sorted((row["epoch"], row["ordinal"], row["occurrence"]) for row in batch if row["weight"])


def test_labels_are_read_without_pictures(config: TrainConfig) -> None:
    classes = read_classes(open_source(config).split("train"))
    assert classes.dtype == np.int32
    shuffled = np.array(LABELS)[np.random.default_rng(1).permutation(len(LABELS))]
    assert classes.tolist() == shuffled.tolist()


def test_an_epoch_delivers_each_class_equally_often(config: TrainConfig) -> None:
    rows = [row for batch in delivered(config, steps=5) for row in batch if row["weight"]]
    assert len(rows) == 39
    assert Counter(int(row["label"]) for row in rows) == {0: 13, 1: 13, 2: 13}
    drawn = Counter(int(row["ordinal"]) for row in rows)
    assert {drawn[int(row["ordinal"])] for row in rows if row["label"] == 2} == {4, 5}


def test_the_plan_is_what_is_delivered(config: TrainConfig) -> None:
    split = open_source(config).split("train")
    planned = [batch.tolist() for batch in islice(global_batches(config, split, start_step=3), 9)]
    found = delivered(config, steps=9, start=3)
    assert planned == [[row["ordinal"] for row in batch if row["weight"]] for batch in found]
    classes = read_classes(split)
    assert planned[4] == global_batch(split.shard_records, config.order, step=7, classes=classes).tolist()


def test_two_workers_and_a_restart_deliver_the_same_draws(config: TrainConfig) -> None:
    alone = [draws(batch) for batch in delivered(config, steps=7)]
    parts = [delivered(config, steps=4, start=3, worker=worker, workers=2) for worker in range(2)]
    assert [draws(one + other) for one, other in zip(*parts, strict=True)] == alone[3:]


def test_copies_of_a_record_are_changed_differently(config: TrainConfig) -> None:
    share = Share(worker=0, workers=1, batch=8, threads=2)
    batches = training_dataset(config, open_source(config), share, start_step=0).as_numpy_iterator()
    pictures = np.concatenate([batch["image"] for batch in islice(batches, 5)])
    rows = [row for batch in delivered(config, steps=5) for row in batch]
    copies: dict[int, set[bytes]] = {}
    for picture, row in zip(pictures, rows, strict=True):
        if row["label"] == 2 and row["weight"]:
            copies.setdefault(int(row["ordinal"]), set()).add(picture.tobytes())
    assert len(copies) == 3
    assert all(len(changed) >= 3 for changed in copies.values())  # of four or five; two may be alike by chance


def test_steps_of_an_epoch_follow_from_the_manifest(config: TrainConfig) -> None:
    split = open_source(config).split("train")
    assert (split.records, split.classes, split.draws("natural"), split.draws("balanced")) == (39, 3, 39, 39)
    assert replace(split, classes=4).draws("balanced") == 40


def test_shards_that_are_not_what_was_counted_are_refused(config: TrainConfig) -> None:
    split = replace(open_source(config).split("train"), classes=4)
    message = "split 'train' has records of 3 classes, the manifest counts 4; find the damage with"
    with pytest.raises(ShardsmithError, match=message):
        next(training_plan(config, split, worker=0, workers=1, start_step=0))


def test_damage_among_the_labels_is_told_as_such_before_reading_begins(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(dataset, copy)
    shard = copy / "train/train-00001.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-50])
    config = make_config(copy, input__sampling="balanced")
    with pytest.raises(
        ShardsmithError, match=r"train-00001.tfrecord, record at byte \d+: the file ends before the record"
    ):
        training_dataset(config, open_source(config), Share(worker=0, workers=1, batch=6, threads=1), start_step=0)


def test_records_without_one_class_are_refused(tmp_path: Path) -> None:
    rows = random_rows(8, kind="multi")
    source = open_source(make_config(write_dataset(tmp_path, {"train": rows}, kind="multi", shards=1)))
    with pytest.raises(ShardsmithError, match=r"has a record with the label \[.*\], not one class; find the damage"):
        read_classes(source.split("train"))


@pytest.mark.parametrize(("kind", "examples"), [("multi", r"with 3 label\(s\)"), ("regression", r"with 2 target\(s\)")])
def test_balance_needs_classes(tmp_path: Path, kind: str, examples: str) -> None:
    data = write_dataset(tmp_path, {"train": random_rows(8, kind=kind)}, kind=kind)
    config = make_config(data, input__sampling="balanced", evaluate_every_epochs=None)
    message = f"^input.sampling balanced needs one class per example; {data} has examples {examples}; set"
    with pytest.raises(UsageError, match=message):
        check_training(config, open_source(config), workers=1)
