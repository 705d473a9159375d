"""Two real processes with MultiWorkerMirroredStrategy: their weights are equal, and those of one process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from crews import digest, finish, start, write_config
from trainer_data import random_pictures, random_rows, write_dataset

from trainer.running.workers import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(45)
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures[:32], "validation": pictures[32:]})


def weights(checkpoint: Path) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(checkpoint / "variables"))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names}


def test_two_workers_train_as_one(dataset: Path, tmp_path: Path) -> None:
    values = {
        "global_batch": 8,
        "steps": 3,
        "input": {"lanes": 4, "sampling": "balanced"},
        "model": {"arguments": {"width": 2}},
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "augment": {"flip": True, "shift": 1, "policy": {}, "mixup": 0.5, "cutmix": 1.0},
        "loss": {"class_weights": "balanced"},
    }
    one = write_config(tmp_path / "one.yaml", dataset, tmp_path / "one", **values)
    two = write_config(tmp_path / "two.yaml", dataset, tmp_path / "two", **values)
    together = finish(start("train", str(two), "--local-workers", "2"))
    alone = finish(start("train", str(one)))
    log = (tmp_path / "two/logs/worker-1.log").read_text()
    assert digest(together) == digest(log)
    assert "worker 0 of 2" in together
    assert "worker 1 of 2" in log
    mine, theirs = (weights(tmp_path / name / "checkpoints/step-3") for name in ("one", "two"))
    assert mine.keys() == theirs.keys()
    assert sum(values.size for values in mine.values()) > 400
    for name in mine:
        np.testing.assert_allclose(theirs[name], mine[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert digest(alone) != digest(finish(start("train", str(two), "--set", "steps=4"))), "one worker goes on from two"


@pytest.mark.parametrize("kind", ["multi", "regression"])
def test_two_workers_learn_other_labels_as_one(kind: str, tmp_path: Path) -> None:
    rows = random_rows(43, kind=kind)
    data = write_dataset(tmp_path / "data", {"train": rows[:32], "validation": rows[32:]}, kind=kind)
    values = {"steps": 3, "global_batch": 8, "input": {"lanes": 4}, "model": {"arguments": {"hidden": [4]}}}
    judged = []
    for name, extra in (("one", []), ("two", ["--local-workers", "2"])):
        config = write_config(tmp_path / "c.yaml", data, tmp_path / name, **values)
        finish(start("train", str(config), *extra))
        judged.append(json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1]))
    assert [each.pop("split") for each in judged] == ["validation"] * 2
    assert judged[0]["examples"] == 11
    assert judged[0] == pytest.approx(judged[1], rel=1e-4)
    mine, theirs = (weights(tmp_path / name / "checkpoints/step-3") for name in ("one", "two"))
    for name in mine:
        np.testing.assert_allclose(theirs[name], mine[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_batch_statistics_agree(dataset: Path, tmp_path: Path) -> None:
    model = {"name": "MobileNetV2", "image_size": 32, "arguments": {"alpha": 0.35}}
    values = {"steps": 1, "global_batch": 8, "model": model, "evaluate_every_epochs": None}
    config = write_config(tmp_path / "c.yaml", dataset, tmp_path / "run", **values)
    text = finish(start("train", str(config), "--local-workers", "2"))
    assert digest(text) == digest((tmp_path / "run/logs/worker-1.log").read_text())


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
