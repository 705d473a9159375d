"""Damaged records: named exactly, or passed over without moving anything else."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
import tensorflow as tf
from crews import digest, finish, start, write_config
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from shards.errors import ShardsmithError
from trainer.__main__ import main
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
    with pytest.raises(ShardsmithError, match=f"{SHARD} cannot be read: No such file or directory; bring it back"):
        batches(configure(copy, policy))


def test_an_iterator_that_is_left_ends(pictures: Path) -> None:
    config = configure(pictures, "skip")
    share = Share(worker=0, workers=1, batch=8, threads=2)
    for steps in (1, 4):
        list(islice(training_dataset(config, open_source(config), share, start_step=0), steps))
    assert tf.executing_eagerly()


@pytest.fixture(scope="module")
def damaged(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One record that fails its checksum, and one whose picture is cut short."""
    copy = damage.copy(pictures, tmp_path_factory.mktemp("damaged") / "copy")
    damage.break_picture(copy / SHARD, 9)
    damage.flip(copy / SHARD, 5)
    return copy


def losses(output: Path) -> tuple[list[float], list[int]]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows], [row["skipped_examples"] for row in rows]


def test_evaluate_names_the_damaged_record(
    pictures: Path, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values: dict[str, Any] = {"steps": 1, "splits": {"evaluate": "train"}}
    config = write_config(tmp_path / "c.yaml", pictures, tmp_path / "run", **values)
    assert main(["train", str(config)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(config), "--dataset", str(damaged)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"error: record 5 of .*{SHARD}.*: data fails its checksum; see all damage with", error)


@pytest.mark.slow
def test_two_workers_skip_as_one(damaged: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {"steps": 14, "faults": {"bad_record": "skip"}, "evaluate_every_epochs": None}
    for name, flags in (("one", []), ("two", ["--local-workers", "2", "--profile"])):
        config = write_config(tmp_path / f"{name}.yaml", damaged, tmp_path / name, **values)
        told = finish(start("train", str(config), *flags))
        assert "skipped  4 examples with damaged records" in told, "two in each of two epochs"
    log = (tmp_path / "two/logs/worker-1.log").read_text()
    assert digest(told) == digest(log)
    named = [re.findall(r"skipped  record (\d+) of", text) for text in (told, log)]
    assert {*named[0], *named[1]} == {"5", "9"}
    assert all(len(each) == len(set(each)) for each in named), "no worker says it twice"
    mine, theirs = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(mine[0]) == len(theirs[0]) == 14
    assert mine[1] == theirs[1]
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-2)
    assert len(list((tmp_path / "two/tensorboard/plugins/profile").glob("*/*.xplane.pb"))) == 1
    assert '"waiting_1": ' in (tmp_path / "two/metrics.jsonl").read_text()


@pytest.mark.slow
def test_two_workers_stop(damaged: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.yaml", damaged, tmp_path / "run", steps=14, evaluate_every_epochs=None)
    process = start("train", str(config), "--local-workers", "2")
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 1, text
    assert re.search(rf"record [59] of .*{SHARD}.*faults.bad_record=skip", text), text


@pytest.mark.slow
def test_a_dataset_that_vanishes_while_training(pictures: Path, tmp_path: Path) -> None:
    copy = damage.copy(pictures, tmp_path / "copy")
    config = write_config(tmp_path / "c.yaml", copy, tmp_path / "run", steps=10**7, evaluate_every_epochs=None)
    process = start("train", str(config))
    assert process.stdout
    next(line for line in process.stdout if line.startswith("step 2/"))
    shutil.rmtree(copy)
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 1, text
    error = text.splitlines()[-1]
    assert re.match(r"error: (shard|index) .* cannot be read: .*No such file or directory", error), text
    assert "Traceback" not in text
