"""Real processes, killed at random steps and started again on other numbers of workers: the order holds.

SHARDSMITH_KILLS=20 kills a run that often, instead of twice.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from trainer_data import make_config, random_pictures, write_dataset

from trainer.learning.consumed import read_consumed
from trainer.learning.saved import newest
from trainer.reading.keys import keys_of_steps
from trainer.reading.source import open_source

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("SHARDSMITH_KILLS", "2"))
RECORDS, STEPS_PER_EPOCH = 29, 4
SETTINGS: dict[str, Any] = {
    "global_batch": 8,
    "input": {"lanes": 4, "run": 2, "shuffle_records": 16},
    "model": {"name": "trainer_models:with_both"},
    "augment": {"flip": True},
    "checkpoint": {"every_steps": 3},
    "log_every": 5,
    "evaluate_every_epochs": 5,
    "deterministic": True,
}


@dataclass(frozen=True)
class Run:
    """A run in its output directory."""

    dataset: Path
    output: Path

    def start(self, workers: int, steps: int = 10**6) -> "subprocess.Popen[str]":
        """Starts the command."""
        config = make_config(self.dataset, self.output, **SETTINGS | {"steps": steps})
        path = self.output.with_suffix(".yaml")
        path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
        command = [sys.executable, "-m", "trainer", "train", str(path), "--record-keys"]
        command += ["--local-workers", str(workers)] if workers > 1 else []
        folders = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": folders},
        )

    def kill(self, workers: int, *, after: int) -> int:
        """Starts, kills all processes at once when `after` more steps were recorded; returns how far it had come."""
        goal = self.recorded() + after
        process = self.start(workers)
        started = psutil.Process(process.pid)
        while self.recorded() < goal:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        everyone = [started, *started.children(recursive=True)]
        for each in everyone:
            each.kill()
        process.communicate()
        psutil.wait_procs(everyone, timeout=60)
        return self.recorded()

    def finish(self, workers: int, steps: int) -> list[str]:
        """Runs to the end; returns the digest of the weights that each worker printed."""
        text, _ = (process := self.start(workers, steps)).communicate(timeout=600)
        assert process.returncode == 0, text
        logs = [(self.output / f"logs/worker-{index}.log").read_text() for index in range(1, workers)]
        return [re.findall(r"weights +sha256 ([0-9a-f]{64})", log)[-1] for log in [text, *logs]]

    def recorded(self) -> int:
        """The last step that the chief has recorded, one less than it has done."""
        steps = [
            json.loads(line)["step"]
            for path in self.output.glob("keys/worker-0-of-*.jsonl")
            for line in path.read_text().splitlines()
            if line.endswith("}")
        ]
        return max(steps, default=-1)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl without what depends on the clock."""
        rows = [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        timed = ("images_per_second", "waiting")
        return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]


def random_steps(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randint(1, 12) for _ in range(KILLS)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on two workers that was killed."""
    folder = tmp_path_factory.mktemp("elastic")
    pictures = random_pictures(RECORDS + 7)
    splits = {"train": pictures[:RECORDS], "validation": pictures[RECORDS:]}
    run = Run(write_dataset(folder / "data", splits), folder / "killed")
    run.kill(2, after=7)
    return run


def test_two_workers_end_bit_by_bit_as_if_nothing_had_happened(killed: Run, tmp_path: Path) -> None:
    cut = Run(killed.dataset, tmp_path / "cut")
    shutil.copytree(killed.output, cut.output)
    for after in random_steps(3)[1:]:
        cut.kill(2, after=after)
    total = cut.recorded() + 5
    whole = Run(killed.dataset, tmp_path / "whole")
    digests = whole.finish(2, total)
    assert len(set(digests)) == 1, "both workers have the same weights and moving statistics"
    assert cut.finish(2, total) == digests
    assert cut.metrics() == whole.metrics()
    assert read_consumed(cut.output) == read_consumed(whole.output)
    saved = newest(cut.output)
    assert saved is not None
    assert saved.progress.restarts >= KILLS - 1


def test_the_order_holds_from_two_workers_to_one_to_four(killed: Run, tmp_path: Path) -> None:
    run = Run(killed.dataset, tmp_path / "run")
    shutil.copytree(killed.output, run.output)
    for number, after in enumerate(random_steps(4)[1:]):
        run.kill((1, 4, 2)[number % 3], after=after)
    epochs = run.recorded() // STEPS_PER_EPOCH + 2
    total = epochs * STEPS_PER_EPOCH
    assert len(set(run.finish(4, total))) == 1
    config = make_config(run.dataset, run.output, **SETTINGS | {"steps": total})
    order = keys_of_steps(config, open_source(config).split("train"), 0, total)
    consumed = read_consumed(run.output)
    assert consumed == {step: sorted(keys) for step, keys in order}
    every = Counter(f"train/{number}" for number in range(RECORDS))
    for epoch in range(epochs):
        steps = range(epoch * STEPS_PER_EPOCH, (epoch + 1) * STEPS_PER_EPOCH)
        assert Counter(key for step in steps for key in consumed[step]) == every
    assert {path.name for path in (run.output / "keys").iterdir()} >= {
        "worker-1-of-2.jsonl",
        "worker-0-of-1.jsonl",
        "worker-3-of-4.jsonl",
    }
