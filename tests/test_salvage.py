"""Damaged records: named exactly, or passed over without moving anything else."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
import tensorflow as tf
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.learning.faults import explained
from trainer.reading.dataset import Share, evaluation_dataset, training_dataset
from trainer.reading.plan import training_plan
from trainer.reading.source import open_source

RECORDS = 50  # in shards of 8, 17 and 25
SHARD = "train/train-00001.tfrecord"
FIRST = 8  # ordinal of the shard's record 0


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    examples = random_pictures(RECORDS, kind="JPEG", size=(16, 16))
    resize = {"mode": "exact", "size": 16, "width": None, "height": None}
    return write_dataset(tmp_path_factory.mktemp("pictures"), {"train": examples}, resize=resize)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("rows"), {"train": random_rows(RECORDS, kind="multi")}, kind="multi")


def configure(dataset: Path, policy: str, **values: Any) -> TrainConfig:
    reading = {"lanes": 4, "run": 3, "shuffle_records": 16}
    return make_config(dataset, global_batch=8, input=reading, faults={"bad_record": policy}, **values)


def batches(config: TrainConfig, *, steps: int = 9, split: str = "", worker: int = 0, workers: int = 1) -> Any:
    """Batches of training, or of a split in evaluation; the values of each name in one array."""
    source, share = open_source(config), Share(worker=worker, workers=workers, batch=8 // workers, threads=2)
    made = (
        evaluation_dataset(config, source, share, split=split)
        if split
        else training_dataset(config, source, share, start_step=0)
    )
    with explained(source):
        found = list(islice(made.as_numpy_iterator(), steps))
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def ordinals(config: TrainConfig, count: int, *, worker: int = 0, workers: int = 1) -> Any:
    plan = training_plan(config, open_source(config).split("train"), worker=worker, workers=workers, start_step=0)
    return np.concatenate([block.ordinals for _, block in islice(plan, count)])[:count]


def assert_only_these_differ(damaged: Any, healthy: Any, places: Any) -> None:
    """Everything is as without damage, but for the places, which hold something harmless that does not count."""
    assert places.any()
    for name in healthy:
        np.testing.assert_array_equal(damaged[name][~places], healthy[name][~places], err_msg=name)
    assert not damaged["weight"][places].any()
    np.testing.assert_array_equal(damaged["skipped"], places * healthy["weight"])
    assert not healthy["skipped"].any()


DAMAGES: dict[str, tuple[Callable[[Path], None], list[int], str]] = {
    "flip": (lambda shard: damage.flip(shard, 5), [5], r"record 5 of .*{shard}.*: data fails its checksum"),
    "cut inside": (
        lambda shard: damage.cut(shard, 15),
        [15, 16],
        r"record 1[56] of .*{shard}: file ends (\d+ bytes before the record does|inside the record's header)",
    ),
    "cut between": (
        lambda shard: damage.cut(shard, 16, inside=False),
        [16],
        r"record 16 of .*{shard}: file ends inside the record's header",
    ),
    "no example": (
        lambda shard: damage.rewrite(shard, 7, lambda _: b"hello"),
        [7],
        r"record 7 of .*{shard}: Could not parse example input",
    ),
    "no picture": (
        lambda shard: damage.break_picture(shard, 9),
        [9],
        r"record 9 of .*{shard} \(key train/17\): .*(JPEG|jpeg|image)",
    ),
    "both kinds": (
        lambda shard: (damage.break_picture(shard, 9), damage.flip(shard, 5))[0],
        [5, 9],
        "record [59] of .*{shard}",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_pictures(kind: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harm, bad, message = DAMAGES[kind]
    copy = damage.copy(pictures, tmp_path / "copy")
    harm(copy / SHARD)
    with pytest.raises(ShardsmithError, match=message.format(shard=SHARD)) as error:
        batches(configure(copy, "stop", augment={"flip": True}))
    assert "`python -m shards verify`" in str(error.value)
    assert "`python -m pipelines repair`" in str(error.value)
    assert "faults.bad_record=skip" in str(error.value)
    capsys.readouterr()

    config = configure(copy, "skip", augment={"flip": True})
    healthy = batches(configure(pictures, "stop", augment={"flip": True}), steps=16)
    places = np.isin(ordinals(config, 16 * 8), np.array(bad) + FIRST)
    assert places.sum() > len(bad), "more than one epoch"
    assert_only_these_differ(batches(config, steps=16), healthy, places)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped")]
    assert sorted(line.split()[2] for line in told) == sorted(map(str, bad)), "each is told once"


@pytest.mark.parametrize("worker", [0, 1])
def test_two_workers_have_as_many_batches(worker: int, pictures: Path, tmp_path: Path) -> None:
    copy = damage.copy(pictures, tmp_path / "copy")
    damage.cut(copy / SHARD, 3)
    config = configure(copy, "skip")
    healthy = batches(configure(pictures, "stop"), steps=7, worker=worker, workers=2)
    places = np.isin(ordinals(config, 7 * 4, worker=worker, workers=2), np.arange(3, 17) + FIRST)
    assert_only_these_differ(batches(config, steps=7, worker=worker, workers=2), healthy, places)


@pytest.mark.parametrize("kind", ["flip", "no picture"])
def test_evaluation_does_not_count_what_it_skips(kind: str, pictures: Path, tmp_path: Path) -> None:
    harm, [bad], message = DAMAGES[kind]
    copy = damage.copy(pictures, tmp_path / "copy")
    harm(copy / SHARD)
    with pytest.raises(ShardsmithError, match=message.format(shard=SHARD)):
        batches(configure(copy, "stop"), steps=7, split="train")
    healthy = batches(configure(pictures, "stop"), steps=14, split="train")
    found = batches(configure(copy, "skip"), steps=14, split="train")
    assert_only_these_differ(found, healthy, np.arange(14 * 8) % 56 == bad + FIRST)
    assert found["weight"].sum() == 2 * (RECORDS - 1)


def test_damaged_rows_of_several_labels(rows: Path, tmp_path: Path) -> None:
    copy = damage.copy(rows, tmp_path / "copy")
    damage.flip(copy / SHARD, 0)
    with pytest.raises(ShardsmithError, match=f"record 0 of .*{SHARD}.*: data fails its checksum"):
        batches(configure(copy, "stop"))
    places = ordinals(configure(copy, "skip"), 9 * 8) == FIRST
    assert_only_these_differ(batches(configure(copy, "skip")), batches(configure(rows, "stop")), places)


def test_without_damage_the_policy_changes_nothing(pictures: Path) -> None:
    stop, skip = (batches(configure(pictures, policy, augment={"shift": 2})) for policy in ("stop", "skip"))
    for name in stop:
        np.testing.assert_array_equal(stop[name], skip[name])


def test_the_stand_in_is_the_nearest_good_record(pictures: Path, tmp_path: Path) -> None:
    copy = damage.copy(pictures, tmp_path / "copy")
    damage.flip(copy / SHARD, 5)
    damage.break_picture(copy / "train/train-00002.tfrecord", 0)
    healthy = batches(configure(pictures, "stop"), steps=7, split="train")
    found = batches(configure(copy, "skip"), steps=7, split="train")
    np.testing.assert_array_equal(found["image"][FIRST + 5], healthy["image"][FIRST + 4])
    np.testing.assert_array_equal(found["image"][25], healthy["image"][26])


def test_a_shard_without_any_good_record_cannot_be_skipped(pictures: Path, tmp_path: Path) -> None:
    copy = damage.copy(pictures, tmp_path / "copy")
    (copy / SHARD).write_bytes(b"")
    with pytest.raises(ShardsmithError, match=f"{SHARD} has no record that can be used; see all damage with"):
        batches(configure(copy, "skip"))


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_shard_that_has_vanished(policy: str, pictures: Path, tmp_path: Path) -> None:
    copy = damage.copy(pictures, tmp_path / "copy")
    (copy / SHARD).unlink()
    with pytest.raises(ShardsmithError, match=f"{SHARD} cannot be read: No such file or directory"):
        batches(configure(copy, policy))


def test_an_iterator_that_is_left_ends(pictures: Path) -> None:
    config = configure(pictures, "skip")
    share = Share(worker=0, workers=1, batch=8, threads=2)
    for steps in (1, 4):
        list(islice(training_dataset(config, open_source(config), share, start_step=0), steps))
    assert tf.executing_eagerly()
