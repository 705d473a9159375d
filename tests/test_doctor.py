"""The doctor finds the slower of input and model, and its advice follows from what it found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from trainer.__main__ import main
from trainer.reading.source import open_source
from trainer.running.doctor import Examination, advise

INPUT_HEAVY = {"model": {"image_size": 8, "arguments": {"width": 1}}}  # tiny network, large PNG to decode and shrink
MODEL_HEAVY = {"model": {"image_size": 32, "arguments": {"width": 96}}}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    large, small = random_pictures(16, size=(320, 320)), random_pictures(16, size=(32, 32))
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "large", {"train": large}, resize={"mode": "exact", "size": 320})
    write_dataset(folder / "small", {"train": small}, resize={"mode": "exact", "size": 32})
    return folder


def examine(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], **values: Any) -> str:
    config = tmp_path / "config.yaml"
    settings = {"dataset": str(dataset), "output": str(tmp_path / "run"), "steps": 4, "evaluate_every_epochs": None}
    batches = {"global_batch": 16, "input": {"lanes": 2, "shuffle_records": 16}}
    config.write_text(yaml.safe_dump(settings | batches | values))
    assert main(["doctor", str(config), "--seconds", "0.2"]) == 0
    assert not (tmp_path / "run").exists()
    return " ".join(capsys.readouterr().out.split())


def test_slow_input(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = examine(pictures / "large", tmp_path, capsys, **INPUT_HEAVY)
    assert "the input is the bottleneck" in said
    assert "the pictures are stored in 320x320 and the model takes 8x8: build the dataset with smaller ones" in said


def test_slow_model(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = examine(pictures / "small", tmp_path, capsys, **MODEL_HEAVY)
    assert "the model is the bottleneck" in said
    assert "images/s, on the same cores - set model.precision to bfloat16" in said


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write_dataset(tmp_path / "rows", {"train": random_rows(16)}, labels=("no", "yes"))
    said = examine(dataset, tmp_path, capsys, model={"arguments": {"hidden": [2048, 2048]}})
    assert "rows/s" in said
    assert "the model is the bottleneck" in said


def test_no_time_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("dataset: d\noutput: o\nsteps: 1\n")
    assert main(["doctor", str(config), "--seconds", "0"]) == 2
    assert "--seconds 0 must be more than 0" in capsys.readouterr().err


FOUND = Examination(noun="images", reading=9000, input=1000, model=4000, first_batch=0.5, shares_cores=True)


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ({}, "the input is the bottleneck, 4.0 times slower than the other: together about 800 images/s, on the same"),
        ({"shares_cores": False}, "the input is the bottleneck, 4.0 times slower than the other: together about 1,000"),
        ({"model": 100}, "the model is the bottleneck, 10.0 times slower than the other: together about 91 images/s"),
        ({"model": 1200}, "input and model are about equally fast: together about 545 images/s"),
    ],
)
def test_verdict(rates: dict[str, Any], sentence: str) -> None:
    assert replace(FOUND, **rates).verdict().startswith(sentence)


def test_advice(pictures: Path) -> None:
    def advice(rates: dict[str, Any], **values: Any) -> list[str]:
        config = make_config(pictures / "small", evaluate_every_epochs=None, **values)
        return advise(replace(FOUND, **rates), config, open_source(config), cores=3)

    assert advice({}) == ["give the process more than its 3 cores, or train on more workers: each reads its own part"]
    slow_storage = advice({"reading": 1500})
    assert slow_storage[0].startswith("reading is slow: set input.cache to memory or disk")
    assert len(advice({"reading": 1500}, input__cache="memory")) == 1
    assert "try without augment.policy: these changes cost the most" in advice({}, augment__policy={})
    assert [line.split()[0] for line in advice({"model": 100})] == ["set", "try", "use"]
    assert [line.split()[0] for line in advice({"model": 100}, model__precision="bfloat16")] == ["try", "use"]
    assert advice({"model": 1000}) == ["to go faster, both must become faster: more cores or more workers"]
