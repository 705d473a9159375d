"""A loss that is bad: the run stops and names the examples, or goes back and leaves them out."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tensorflow.python.framework import config as tf_config
from trainer_data import make_config, random_rows, write_dataset

from shards.errors import RestartMe, ShardsmithError
from shards.order import global_batch
from trainer.config import TrainConfig
from trainer.learning.loop import Outcome, train
from trainer.learning.rollback import oldest_suspect
from trainer.learning.saved import newest
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace

RECORDS, BAD = 48, 20


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, one of which has numbers so large that squares of them are infinite."""
    rows = random_rows(RECORDS, kind="regression")
    rows[BAD] = ([3e30] * 6, rows[BAD][1])
    return write_dataset(tmp_path_factory.mktemp("rows"), {"train": rows}, kind="regression")


@pytest.fixture(autouse=True)
def _restore_determinism() -> Iterator[None]:
    yield
    tf_config.disable_op_determinism()


def configure(dataset: Path, output: Path, **values: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "steps": 16,  # two epochs
        "log_every": 1,
        "model": {"arguments": {"hidden": [4]}},
        "optimizer": {"name": "adam", "learning_rate": 0.01, "schedule": "cosine"},
        "checkpoint": {"every_steps": 2},
        "evaluate_every_epochs": None,
        "deterministic": True,
    }
    return make_config(dataset, output, **base | values)


def bad_step(config: TrainConfig) -> int:
    """The first step, counted from 1, that the bad record is in."""
    records = open_source(config).split("train").shard_records
    return next(step + 1 for step in range(8) if BAD in global_batch(records, config.order, step=step))


def run(config: TrainConfig) -> Outcome:
    return train(config, open_source(config), open_workplace(config, Cluster(), threads=None))


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_stop_names_the_examples_and_saves_nothing(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path)
    step = bad_step(config)
    assert 3 <= step <= 7, "there must be steps and checkpoints around it"
    with pytest.raises(ShardsmithError) as error:
        run(config)
    assert error.value.exit_code == 1
    records = open_source(config).split("train").shard_records
    keys = [f"train/{n}" for n in global_batch(records, config.order, step=step - 1)]
    path = tmp_path / f"bad_loss-step-{step}.json"
    assert str(error.value).startswith(
        f"the loss is inf at step {step}, whose batch held {', '.join(keys[:3])} and 3 more examples (all in {path}); "
    )
    assert "faults.bad_loss=rollback" in str(error.value)
    assert f"train/{BAD}" in keys
    assert json.loads(path.read_text()) == {"step": step, "loss": "inf", "examples": keys}
    saved = newest(tmp_path)
    assert saved
    assert saved.step == (step - 1) // 2 * 2


def test_rollback_leaves_the_window_out(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure(dataset, tmp_path / "run", faults={"bad_loss": "rollback"})
    step = bad_step(config)
    good = (step - 1) // 2 * 2
    outcome = run(config)
    assert (outcome.first_step, outcome.last_step) == (0, 16)
    assert f"; back to the weights of step {good}, without the batches of steps {good + 1} to {step}" in (
        capsys.readouterr().out
    )
    second = next(n for n in range(9, 17) if _holds_bad(config, n))  # of the next epoch
    rows = metrics(tmp_path / "run")
    jumps = [row for row in rows if "skipped_steps" in row]
    assert [row["skipped_steps"] for row in jumps] == [[good + 1, step], [(second - 1) // 2 * 2 + 1, second]]
    assert float(jumps[0]["loss"]) == math.inf
    assert [row["step"] for row in rows] == list(range(1, 17)), "each step once"
    assert all(math.isfinite(row["loss"]) for row in rows if "skipped_steps" not in row)
    # The learning rate is that of the step, as if nothing had been left out.
    [after] = [row for row in rows if row["step"] == step + 1]
    assert after["learning_rate"] == pytest.approx(0.005 * (1 + math.cos(math.pi * step / 16)), rel=1e-5)
    saved = newest(tmp_path / "run")
    assert saved
    assert saved.progress.skipped == ((good, step), ((second - 1) // 2 * 2, second))


def _holds_bad(config: TrainConfig, step: int) -> bool:
    return BAD in global_batch(open_source(config).split("train").shard_records, config.order, step=step - 1)


def test_a_kill_after_the_rollback_changes_nothing(dataset: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "faults": {"bad_loss": "rollback"},
        "checkpoint": {"every_steps": 5},
        "optimizer": {"learning_rate": 0.01},  # constant: a run of another length has the same
    }
    whole = run(configure(dataset, tmp_path / "whole", **values))
    config = configure(dataset, tmp_path / "cut", **values)
    step = bad_step(config)
    run(config.model_copy(update={"steps": step - 1}))
    workplace = open_workplace(config, Cluster(), threads=None)
    workplace.leaving.assign(1.0)  # asked to leave in the very step
    with pytest.raises(RestartMe, match=f"saved step {step}"):
        train(config, open_source(config), workplace)
    resumed = run(config)
    assert (resumed.first_step, resumed.weights) == (step, whole.weights)


def test_rollbacks_are_limited_across_restarts(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path, faults={"bad_loss": "rollback", "most_rollbacks": 1})
    run(config.model_copy(update={"steps": 8}))
    with pytest.raises(ShardsmithError, match="the run has gone back 1 times already, as often as faults.most_roll"):
        run(config)


def test_a_limit_finds_what_is_finite(dataset: Path, tmp_path: Path) -> None:
    rows = random_rows(RECORDS, kind="regression")
    rows[BAD] = ([1e6] * 6, rows[BAD][1])
    data = write_dataset(tmp_path / "data", {"train": rows}, kind="regression")
    config = configure(data, tmp_path / "run", faults={"loss_limit": 1000.0})
    with pytest.raises(ShardsmithError, match=r"the loss is [\d.e+]+, above the limit of 1000, at step"):
        run(config)
    assert run(configure(data, tmp_path / "free")).last_step == 16, "without a limit it goes on"


def test_weights_that_are_not_finite_are_not_gone_back_to(dataset: Path, tmp_path: Path) -> None:
    # A rate like this makes the weights infinite in the first update, whose loss was fine.
    values = {"optimizer": {"name": "sgd", "learning_rate": 1e38}, "checkpoint": {"every_steps": 1}}
    config = configure(dataset, tmp_path, faults={"bad_loss": "rollback", "most_rollbacks": 20}, **values)
    with pytest.raises(ShardsmithError, match="no good checkpoint is left to go back to: lower optimizer.learning"):
        run(config)


def test_weights_that_fail_at_once_are_suspect() -> None:
    assert oldest_suspect(9, []) == 9
    assert oldest_suspect(9, [(4, 7)]) == 9, "step 8 was good"
    assert oldest_suspect(8, [(4, 7)]) == 4
    assert oldest_suspect(9, [(4, 7), (2, 8)]) == 2


@pytest.mark.slow
def test_two_workers_go_back_together(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path / "run", faults={"bad_loss": "rollback"})
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "trainer", "train", str(path), "--local-workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (tmp_path / "run/logs/worker-1.log").read_text()
    digests = [re.findall(r"weights +sha256 (\w{64})", text) for text in (done.stdout, log)]
    assert digests[0] == digests[1] != []
    assert done.stdout.count("back to the weights of step") == log.count("back to the weights of step") == 2
    alone = run(configure(dataset, tmp_path / "alone", faults={"bad_loss": "rollback"}))
    assert alone.last_step == 16
    mine, theirs = (
        [row["skipped_steps"] for row in metrics(tmp_path / name) if "skipped_steps" in row]
        for name in ("alone", "run")
    )
    assert mine == theirs
    losses = [[row["loss"] for row in metrics(tmp_path / name) if "epoch" in row] for name in ("alone", "run")]
    finite = [[loss for loss in each if isinstance(loss, float)] for each in losses]
    np.testing.assert_allclose(finite[0], finite[1], rtol=1e-3)
