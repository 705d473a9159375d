"""Judging a checkpoint: the same files, byte by byte, from one, two and three real processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from trainer_data import make_config, random_pictures, write_dataset

from trainer.commands.evaluate import _tell_evaluation
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.judging.labels import LabelCount
from trainer.judging.results import Classified
from trainer.learning.loop import train
from trainer.learning.state import build_state
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace

RECORDS = 27


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of a few steps: it knows something, and makes mistakes."""
    base, pictures = tmp_path_factory.mktemp("judged"), random_pictures(24 + RECORDS)
    data = write_dataset(base / "data", {"train": pictures[:24], "validation": pictures[24:]})
    config = make_config(
        data,
        base / "run",
        steps=3,
        model={"arguments": {"width": 2}},
        evaluation={"batch": 4},
        evaluate_every_epochs=None,
    )
    train(config, open_source(config), open_workplace(config, Cluster(), threads=None))
    return config


def evaluate(config: TrainConfig, path: Path, *extra: str) -> str:
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "trainer", "evaluate", str(path), *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(run: Path) -> dict[str, bytes]:
    files = [run / "evaluation-validation.json", *sorted((run / "evaluation-validation").iterdir())]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_one_two_and_three_workers_agree_to_the_byte(trained: TrainConfig, tmp_path: Path) -> None:
    run, found = Path(trained.output), []
    for workers in (1, 2, 3):
        text = evaluate(trained, tmp_path / "c.yaml", *(["--local-workers", str(workers)] if workers > 1 else []))
        assert f"made     {run / 'evaluation-validation.json'}" in text
        found.append(results(run))
    one, two, three = found
    assert two == one
    assert three == one
    judged = json.loads(one["evaluation-validation.json"])
    assert (judged["examples"], judged["skipped"]) == (RECORDS, 0)
    assert sum(each["examples"] for each in judged["classes"]) == RECORDS
    assert sum(cell["examples"] for cell in judged["confusions"]) == RECORDS
    mistakes = [json.loads(line) for line in one["mistakes.jsonl"].splitlines()]
    assert len(mistakes) == RECORDS - judged["correct"] > 0


REPLICAS = """
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
from trainer.config import TrainConfig
from trainer.judging.evaluate import evaluate_checkpoint
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import Workplace
config = TrainConfig.model_validate_json(sys.argv[1])
leaving = tf.Variable(0.0)
for names in (["/cpu:0"], ["/cpu:0", "/cpu:1", "/cpu:2"]):
    strategy = tf.distribute.MirroredStrategy(names)
    workplace = Workplace(strategy=strategy, cluster=Cluster(), threads=2, leaving=leaving)
    print(evaluate_checkpoint(config, open_source(config), workplace, split="validation", checkpoint=None)[1])
    assert workplace.gather_bytes(b"\\xff" * 9) == [b"\\xff" * 9]
"""


@pytest.mark.slow
def test_several_replicas_of_one_worker_agree_with_one(trained: TrainConfig) -> None:
    command = [sys.executable, "-c", REPLICAS, trained.model_dump_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    one, three = (line for line in done.stdout.splitlines() if line.startswith("Classified("))
    assert one == three
    assert f"examples={RECORDS}" in one


def evaluator(config: TrainConfig, **values: Any) -> Evaluator:
    source, workplace = open_source(config), open_workplace(config, Cluster(), threads=None)
    state = build_state(config, source, workplace.strategy)
    return Evaluator(config, source, workplace, state=state, split="validation", **values)


@pytest.mark.parametrize("batch", [1, 4, RECORDS, 64])
def test_padding_never_counts(trained: TrainConfig, batch: int) -> None:
    config = trained.model_copy(update={"evaluation": trained.evaluation.model_copy(update={"batch": batch})})
    result = evaluator(config).evaluate(0)
    assert (result.examples, result.skipped) == (RECORDS, 0)
    assert [each.examples for each in result.classes] == [9, 9, 9]
    assert result.loss == pytest.approx(evaluator(trained).evaluate(0).loss, rel=1e-5)
    assert result.mistakes == ()


def test_mistakes_are_those_of_the_model(trained: TrainConfig) -> None:
    result = evaluator(trained, worst=100).evaluate(0)
    assert len(result.mistakes) == RECORDS - result.correct
    losses = [mistake.loss for mistake in result.mistakes]
    assert losses == sorted(losses, reverse=True)
    truth = [label for _, label in random_pictures(24 + RECORDS)[24:]]
    assert all("abc"[truth[mistake.ordinal]] == mistake.about["true"] for mistake in result.mistakes)
    assert len({mistake.ordinal for mistake in result.mistakes}) == len(losses)
    assert np.all(np.array(losses) > np.log(2)), "who is wrong gave the true class less than a half"


def test_damaged_records_are_skipped_and_told(trained: TrainConfig, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(trained.dataset, data)
    for ordinal in (0, 13):  # the first of a batch, and another
        damage(data, ordinal)
    config = trained.model_copy(
        update={"dataset": str(data), "faults": trained.faults.model_copy(update={"bad_record": "skip"})}
    )
    whole, rest = evaluator(trained, worst=99).evaluate(0), evaluator(config, worst=99).evaluate(0)
    assert (rest.examples, rest.skipped) == (RECORDS - 2, 2)
    assert rest.counted == f"{rest.correct} of {RECORDS - 2}, 2 skipped as damaged"
    assert rest.mistakes == tuple(mistake for mistake in whole.mistakes if mistake.ordinal not in (0, 13))


def damage(data: Path, ordinal: int) -> None:
    split = open_source(make_config(data)).split("validation")
    starts = np.cumsum([0, *split.shard_records])
    shard = int(np.searchsorted(starts, ordinal, side="right")) - 1
    offset, size = split.extent(shard, int(ordinal - starts[shard]), 1)
    content = bytearray(Path(split.paths[shard]).read_bytes())
    content[offset + size // 2] ^= 255
    Path(split.paths[shard]).write_bytes(content)


def test_a_long_table_tells_what_it_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    classes = tuple(LabelCount(f"class {n}", 10, 10, 5) for n in range(1025))
    _tell_evaluation(Classified(split="test", step=7, examples=10250, loss=1.5, classes=classes))
    text = capsys.readouterr().out
    assert "the worst 20; 1,005 more are in the files" in text
    assert "accuracy 0.5000, macro_f1 0.5000, ece 0.0000 (5125 of 10250), loss 1.5000 on test" in text
