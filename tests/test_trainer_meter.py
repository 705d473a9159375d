"""Where the time goes: the share of waiting, the damaged examples, and the trace of some steps."""

import json
import time
from pathlib import Path
from typing import Any

import damage
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config
from trainer_data import make_config, random_pictures, write_dataset

from trainer.config import TrainConfig
from trainer.learning import step
from trainer.learning.loop import train
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.profile import Profile
from trainer.running.report import TrainMetrics
from trainer.running.strategy import open_workplace

NAP = 0.2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": random_pictures(30)})


def configure(dataset: Path, output: Path, **values: Any) -> TrainConfig:
    model = {"arguments": {"width": 2}}
    return make_config(dataset, output, **{"model": model, "evaluate_every_epochs": None, "log_every": 4} | values)


def run(config: TrainConfig, **arguments: Any) -> list[dict[str, Any]]:
    train(config, open_source(config), open_workplace(config, Cluster(), threads=None), **arguments)
    return [json.loads(line) for line in Path(config.output, "metrics.jsonl").read_text().splitlines()]


def doze(values: Any) -> Any:
    """The same values, a while later."""

    def later(array: Any) -> Any:
        time.sleep(NAP)
        return array

    return tf.ensure_shape(tf.numpy_function(later, [values], values.dtype), values.shape)


@pytest.mark.parametrize("deterministic", [False, True])
def test_slow_input_is_waited_for(
    deterministic: bool,
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def slow(*arguments: Any, **named: Any) -> Any:
        made = fast(*arguments, **named)
        return made.map(lambda batch: batch | {"weight": doze(batch["weight"])})

    fast = step.training_dataset
    monkeypatch.setattr(step, "training_dataset", slow)
    # The first interval builds the graph.
    [_, row] = run(configure(dataset, tmp_path, steps=8, deterministic=deterministic))
    tf_config.disable_op_determinism()
    assert 0.5 < row["waiting"] <= 1
    assert f"waiting {100 * row['waiting']:.0f} %  ETA" in capsys.readouterr().out


def test_a_slow_model_does_not_wait(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(step.Update):
        def __call__(self, batch: Any) -> Any:
            return doze(super().__call__(batch))

    monkeypatch.setattr(step, "Update", Slow)
    [_, row] = run(configure(dataset, tmp_path, steps=8))
    assert 0 <= row["waiting"] < 0.4
    assert row["images_per_second"] < 6 / NAP


def test_the_worker_that_waits_most_is_named() -> None:
    values = {"step": 2, "epoch": 0.5, "loss": 1.25, "score_name": "accuracy", "score": 0.5, "learning_rate": 0.1}
    metrics = TrainMetrics(**values, noun="images", per_second=1234.5, waiting=(0.02, 0.634), skipped=3)
    assert str(metrics) == (
        "epoch 0.5  loss 1.2500  accuracy 0.5000  1,234 images/s  waiting 63 % (worker 1)  skipped 3"
    )
    found = {name: value for name, value in metrics.as_dict().items() if "wait" in name or "skip" in name}
    assert found == {"waiting": 0.634, "waiting_0": 0.02, "waiting_1": 0.634, "skipped_examples": 3}
    alone = TrainMetrics(**values, noun="rows", per_second=10.0, waiting=(0.034,), skipped=0)
    assert str(alone) == "epoch 0.5  loss 1.2500  accuracy 0.5000  10 rows/s  waiting 3 %"
    assert "waiting_0" not in alone.as_dict()


def test_damaged_examples_are_counted(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = damage.copy(dataset, tmp_path / "copy")
    damage.flip(copy / "train/train-00001.tfrecord", 3)
    rows = run(configure(copy, tmp_path / "run", steps=10, log_every=5, faults={"bad_record": "skip"}))
    assert [row["skipped_examples"] for row in rows] == [1, 1], "once in each epoch of 5 steps"
    told = capsys.readouterr().out
    assert told.count("skipped  record 3 of") == 1
    assert "skipped 1  ETA" in told


def test_the_trace_of_some_steps(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(configure(dataset, tmp_path, steps=16, log_every=12), profile=True)
    [trace] = (tmp_path / "tensorboard/plugins/profile").glob("*/*.xplane.pb")
    assert trace.stat().st_size > 1000
    assert f"profiled steps 11 to 15; to see them, open the tab Profile of: tensorboard --logdir {tmp_path}" in (
        capsys.readouterr().out
    )


def test_where_the_trace_begins_and_ends() -> None:
    long, short = (Profile("nowhere", first_step=20, total=total, wanted=True) for total in (100, 24))
    assert [long.cut(at, 50) for at in (20, 29, 30, 33, 35)] == [10, 1, 5, 2, 50]
    assert [short.cut(at, 4) for at in (20, 23)] == [3, 1]
