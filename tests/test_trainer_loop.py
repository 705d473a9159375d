"""Training on one device: it learns, resumes bit by bit where it stopped, and refuses what does not belong together."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import RestartMe, ShardsmithError, UsageError
from shards.manifest import read_manifest
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.learning.loop import Outcome, train
from trainer.learning.run import check_run, write_run
from trainer.learning.saved import find_checkpoint
from trainer.learning.schedule import Schedule
from trainer.learning.state import build_state, restore
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(50)
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures[:30], "validation": pictures[30:]})


@pytest.fixture(autouse=True)
def _restore_determinism() -> Iterator[None]:
    yield
    tf_config.disable_op_determinism()


def configure(dataset: Path, output: Path, **values: Any) -> TrainConfig:
    """Everything random at once: dropout, augmentation and order."""
    model = {"arguments": {"width": 2}, "dropout": 0.3}
    augment = {"flip": True, "shift": 1}
    base = {"model": model, "augment": augment, "optimizer": {"learning_rate": 0.01}, "evaluate_every_epochs": None}
    return make_config(dataset, output, **base | values)


def run(config: TrainConfig) -> Outcome:
    return train(config, open_source(config), open_workplace(config, Cluster(), threads=None))


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_learns_and_writes_everything(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path, steps=None, epochs=12, log_every=30, evaluate_every_epochs=6, augment={})
    outcome = run(config)
    assert (outcome.first_step, outcome.last_step) == (0, 60)
    assert outcome.evaluation is not None
    assert outcome.evaluation.examples == 20
    assert outcome.evaluation.accuracy > 0.6
    assert json.loads(Path(outcome.checkpoint, "saved.json").read_text())["step"] == 60
    assert [(row["split"], row["step"]) for row in metrics(tmp_path)] == [
        ("train", 30),
        ("validation", 30),
        ("train", 60),
        ("validation", 60),
    ]
    assert metrics(tmp_path)[2]["loss"] < metrics(tmp_path)[0]["loss"]


def test_tensorboard_events_hold_the_metrics(dataset: Path, tmp_path: Path) -> None:
    run(configure(dataset, tmp_path, steps=2, log_every=1))
    [events] = (tmp_path / "tensorboard").iterdir()
    tags = {v.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for v in event.summary.value}
    assert {"train/loss", "train/accuracy", "train/images_per_second"} <= tags


def test_a_request_to_leave_saves_after_the_step(dataset: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {"steps": 9, "log_every": 3, "checkpoint": {"every_steps": 9}, "deterministic": True}
    whole = run(configure(dataset, tmp_path / "whole", **values))
    config = configure(dataset, tmp_path / "cut", **values)
    workplace = open_workplace(config, Cluster(), threads=None)
    workplace.leaving.assign(1.0)
    with pytest.raises(RestartMe, match="stopped on request; saved step 1, and the same command resumes there") as stop:
        train(config, open_source(config), workplace)
    assert stop.value.exit_code == 75
    resumed = run(config)
    assert (resumed.first_step, resumed.last_step) == (1, 9)
    assert resumed.weights == whole.weights


def test_resumes_bit_by_bit(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run(configure(dataset, tmp_path / "whole", steps=8, deterministic=True))
    first = run(configure(dataset, tmp_path / "parts", steps=3, deterministic=True))
    assert "resuming" not in capsys.readouterr().out
    rest = run(configure(dataset, tmp_path / "parts", steps=8, deterministic=True))
    assert "resuming at step 3 of 8" in capsys.readouterr().out
    assert (first.last_step, rest.first_step, rest.last_step) == (3, 3, 8)
    assert rest.weights == whole.weights != first.weights
    again = run(configure(dataset, tmp_path / "parts", steps=8, deterministic=True))
    assert (again.first_step, again.last_step, again.weights) == (8, 8, whole.weights)


def test_seed_decides_the_weights(dataset: Path, tmp_path: Path) -> None:
    digests = {run(configure(dataset, tmp_path / str(seed), steps=1, seed=seed)).weights for seed in (1, 2)}
    assert len(digests) == 2


def test_metrics_of_repeated_steps_are_replaced(dataset: Path, tmp_path: Path) -> None:
    run(configure(dataset, tmp_path, steps=2, log_every=1))
    lost = {"split": "train", "step": 3}
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(lost) + '\n{"cut')  # the crash came after the report and before the save
    run(configure(dataset, tmp_path, steps=4, log_every=1))
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3, 4]
    assert lost not in metrics(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed was 0, is 9"),
        ({"global_batch": 10}, "global_batch was 6, is 10"),
        ({"input": {"lanes": 3}}, "input.lanes was 2, is 3"),
        ({"optimizer": {"learning_rate": 0.5}}, "optimizer.learning_rate was 0.01, is 0.5"),
    ],
)
def test_other_settings_do_not_continue_a_run(
    dataset: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    begun = configure(dataset, tmp_path)
    write_run(begun, check_run(begun, open_source(begun)))
    config = configure(dataset, tmp_path, **change)
    with pytest.raises(UsageError, match=message):
        check_run(config, open_source(config))


def test_other_data_do_not_continue_a_run(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path / "run")
    write_run(config, check_run(config, open_source(config)))
    (tmp_path / "run/checkpoints/step-7").mkdir(parents=True)
    longer = write_dataset(tmp_path / "data", {"train": random_pictures(36)})
    (longer / "manifest.json").write_text(read_manifest(longer).model_copy(update={"version": 2}).to_json())
    config = configure(longer, tmp_path / "run")
    with pytest.raises(UsageError) as refused:
        check_run(config, open_source(config))
    assert re.sub("[0-9a-f]{12}", "DIGEST", str(refused.value)) == (
        f"{tmp_path}/run holds a run on other training data: it began with 30 examples (version 1, DIGEST), "
        f"{longer} has 36 examples (version 2, DIGEST). A run cannot change its examples halfway; choose another "
        f"output, and to begin there with what was learnt, add --set model.initial={tmp_path}/run/checkpoints/step-7"
    )


def test_a_run_of_an_older_release_is_refused(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-4.index").touch()
    config = configure(dataset, tmp_path)
    with pytest.raises(UsageError, match="holds a run of an older shardsmith.*choose another output"):
        check_run(config, open_source(config))


def test_loss_that_is_not_a_number_stops_the_run(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ShardsmithError, match=r"the loss is (nan|inf) at step [12], whose batch held train/.* lower optimizer.learning"
    ):
        run(configure(dataset, tmp_path, optimizer={"name": "sgd", "learning_rate": 1e38}))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", {"train": random_pictures(12)}, shards=1)
    shard = dataset / "train/train-00000.tfrecord"
    shard.write_bytes(shard.read_bytes().replace(b"IHDR", b"XXXX"))
    with pytest.raises(ShardsmithError, match=r"record \d+ of .*train-00000.tfrecord \(key train/\d+\): data fails"):
        run(configure(dataset, tmp_path / "run"))


def test_checkpoint_of_another_model_is_refused(dataset: Path, tmp_path: Path) -> None:
    outcome = run(configure(dataset, tmp_path, steps=1))
    other = configure(dataset, tmp_path, model={"arguments": {"width": 3}})
    state = build_state(other, open_source(other), tf.distribute.get_strategy())
    with pytest.raises(ShardsmithError, match="does not fit this model"):
        restore(state, outcome.checkpoint)


def test_checkpoint_that_is_not_there(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path)
    with pytest.raises(ShardsmithError, match="has no checkpoint; train first"):
        find_checkpoint(config, None)
    with pytest.raises(UsageError, match="no checkpoint at step-7"):
        find_checkpoint(config, "step-7")


def test_evaluation_repeats_itself(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path)
    source, workplace = open_source(config), open_workplace(config, Cluster(), threads=None)
    state = build_state(config, source, workplace.strategy)
    evaluator = Evaluator(config, source, workplace, state=state, split="validation")
    once, again = evaluator.evaluate(0), evaluator.evaluate(0)
    assert once == again
    assert [row.examples for row in once.classes] == [7, 7, 6]


def test_schedule_stops_where_something_is_due() -> None:
    schedule = Schedule(total=10, log=4, save=3, evaluate=0)
    stops, step = [], 0
    while step < schedule.total:
        step = schedule.next_stop(step)
        stops.append(step)
    assert stops == [3, 4, 6, 8, 9, 10]
    assert schedule.is_due(schedule.save, 10)
    assert not schedule.is_due(schedule.evaluate, 10)
