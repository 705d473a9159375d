"""A run that is cut off, wherever it is, ends as one that is not: the same weights, bit by bit; the same metrics."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorflow.python.framework import config as tf_config
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import RestartMe, ShardsmithError
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.learning.loop import Outcome, train
from trainer.learning.progress import Best
from trainer.learning.saved import find_checkpoint, list_checkpoints, read_saved
from trainer.learning.step import Stepper
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace

MODELS = ("plain", "with_dropout", "with_batch_norm")


class Crash(Exception):
    """Stands for a power cut."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(40)
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures[:28], "validation": pictures[28:]})


@pytest.fixture(autouse=True)
def _restore_determinism() -> Iterator[None]:
    yield
    tf_config.disable_op_determinism()


def configure(dataset: Path, output: Path, model: str, **values: Any) -> TrainConfig:
    """An epoch has 5 steps; log intervals, saves and evaluations fall on different ones."""
    base = {
        "steps": 13,
        "log_every": 4,
        "checkpoint": {"every_steps": 3},
        "model": {"name": f"trainer_models:{model}"},
        "optimizer": {"learning_rate": 0.02, "schedule": "cosine"},
        "augment": {"flip": True, "shift": 1},
        "deterministic": True,
    }
    return make_config(dataset, output, **base | values)


def run(config: TrainConfig, *, leaving: bool = False) -> Outcome:
    workplace = open_workplace(config, Cluster(), threads=None)
    workplace.leaving.assign(float(leaving))
    return train(config, open_source(config), workplace)


def crash(config: TrainConfig, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """Runs until the step `at` has been done, but nothing that is due after it."""
    run_steps = Stepper.run

    def run_and_crash(self: Stepper, steps: int) -> Any:
        stretch = run_steps(self, steps)
        if int(self._state.step.numpy()) >= at:
            raise Crash
        return stretch

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "run", run_and_crash)
        with pytest.raises(Crash):
            run(config)


def metrics(output: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in Path(output, "metrics.jsonl").read_text().splitlines()]
    timed = ("images_per_second", "waiting")
    return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]


@pytest.fixture(scope="module")
def whole(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, list[dict[str, Any]]]]:
    """What runs that nobody disturbs come to."""
    found = {}
    for model in MODELS:
        config = configure(dataset, tmp_path_factory.mktemp(model), model)
        found[model] = run(config), metrics(config.output)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_a_run_that_crashes_ends_as_one_that_does_not(
    model: str,
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: dict[str, tuple[Outcome, list[dict[str, Any]]]],
) -> None:
    config = configure(dataset, tmp_path, model)
    crash(config, monkeypatch, at=5)  # goes on from 3
    crash(config, monkeypatch, at=8)  # goes on from 6
    outcome = run(config)
    expected, lines = whole[model]
    assert (outcome.first_step, outcome.last_step) == (6, 13)
    assert outcome.weights == expected.weights
    assert outcome.evaluation == expected.evaluation
    assert outcome.best == expected.best
    assert metrics(config.output) == lines
    assert [(row["split"], row["step"]) for row in lines] == [
        ("train", 4),
        ("validation", 5),
        ("train", 8),
        ("validation", 10),
        ("train", 12),
        ("train", 13),
        ("validation", 13),
    ]
    assert read_saved(Path(outcome.checkpoint)).progress.restarts == 2


def test_a_run_that_is_asked_to_leave_loses_nothing(
    dataset: Path, tmp_path: Path, whole: dict[str, tuple[Outcome, list[dict[str, Any]]]]
) -> None:
    config = configure(dataset, tmp_path, "with_dropout")
    for _ in range(5):  # each time after one step; the evaluation at step 5 is left to the next
        with pytest.raises(RestartMe, match="stopped on request"):
            run(config, leaving=True)
    assert [row["step"] for row in metrics(config.output)] == [4]
    assert run(config).weights == whole["with_dropout"][0].weights
    assert metrics(config.output) == whole["with_dropout"][1]


def test_a_run_that_crashes_while_it_evaluates(
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: dict[str, tuple[Outcome, list[dict[str, Any]]]],
) -> None:
    config = configure(dataset, tmp_path, "plain")

    def fail(self: Evaluator, step: int) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", fail)
        with pytest.raises(Crash):
            run(config)  # at step 5: goes on from 3
    with monkeypatch.context() as patch:
        patch.setattr("trainer.learning.checkpoints.Checkpoints.amend", fail)
        with pytest.raises(Crash):
            run(config)  # at step 13, whose evaluation has been written to the metrics but not to the checkpoint
    outcome = run(config)
    assert (outcome.first_step, outcome.last_step) == (13, 13)
    assert outcome.evaluation == whole["plain"][0].evaluation
    assert metrics(config.output) == whole["plain"][1]


def test_a_damaged_checkpoint_costs_only_time(
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    whole: dict[str, tuple[Outcome, list[dict[str, Any]]]],
) -> None:
    config = configure(dataset, tmp_path, "plain")
    crash(config, monkeypatch, at=11)
    newest = list_checkpoints(tmp_path)[0]
    torn = newest[1] / "variables.data-00000-of-00001"
    data = bytearray(torn.read_bytes())
    data[len(data) // 2] ^= 1
    torn.write_bytes(data)
    outcome = run(config)
    assert f"warning: checkpoint {newest[1]} is damaged and left out: {torn.name} is not" in capsys.readouterr().err
    assert outcome.first_step < newest[0]
    assert outcome.weights == whole["plain"][0].weights
    assert metrics(config.output) == whole["plain"][1]


def test_early_stopping_counts_over_restarts(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = {"patience": 2, "min_delta": 1.0}  # nothing is ever so much better
    config = configure(dataset, tmp_path, "plain", steps=100, early_stopping=stopping)
    crash(config, monkeypatch, at=7)
    crash(config, monkeypatch, at=14)
    outcome = run(config)
    assert (outcome.first_step, outcome.last_step, outcome.early) == (12, 15, True)
    assert [row["step"] for row in metrics(config.output) if row["split"] == "validation"] == [5, 10, 15]
    again = run(config)
    assert (again.first_step, again.last_step, again.early, again.weights) == (15, 15, True, outcome.weights)
    patient = config.model_copy(
        update={"steps": 16, "early_stopping": config.early_stopping.model_copy(update={"patience": 9})}
    )
    assert (run(patient).first_step, run(patient).last_step) == (15, 16)


def test_the_best_checkpoint_stays(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path, "plain", steps=20, checkpoint={"every_steps": 7, "keep": 1})
    outcome = run(config)
    judged = {row["step"]: row["accuracy"] for row in metrics(config.output) if row["split"] == "validation"}
    best = max(judged, key=lambda step: (judged[step], -step))
    assert outcome.best == Best("accuracy", judged[best], best, since=(20 - best) // 5)
    assert [step for step, _ in list_checkpoints(tmp_path)] == sorted({20, best}, reverse=True)
    assert find_checkpoint(config, "best") == str(tmp_path / f"checkpoints/step-{best}")


def test_a_checkpoint_that_cannot_be_written(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path, "plain", steps=1)
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(ShardsmithError, match=r"the checkpoint cannot be written to .*checkpoints.*to resume"):
        run(config)


def test_replicas_draw_apart() -> None:
    program = """
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from trainer.learning.chance import draw_apart

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=3)])
draw_apart(model)
draw = tf.function(lambda: strategy.run(lambda: model(tf.ones([1, 64]), training=True)))
masks = [part.numpy().tobytes() for _ in range(2) for part in strategy.experimental_local_results(draw())]
states = strategy.experimental_local_results(model.layers[0].seed_generator.state.value)
print(len(set(masks)), [state.numpy().tolist() for state in states])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "4 [[3, 2], [3, 2]]"
