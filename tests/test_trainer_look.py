"""`python -m trainer look`: the pictures of the sheet are those of the training input."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from trainer_data import encode, make_config, random_pictures, random_rows, write_dataset

from trainer.__main__ import main
from trainer.learning.look import training_samples
from trainer.reading.plan import global_batches
from trainer.reading.source import open_source

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = [(encode(np.full((8, 8, 3), COLOURS[n % 3])), n % 3) for n in range(13)]
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": pictures}, labels=("red", "green", "blue"))


def write_config(path: Path, dataset: Path, **values: Any) -> Path:
    config = make_config(dataset, evaluate_every_epochs=None, **values)
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path


def test_the_sheet_shows_what_training_reads(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, sheet = write_config(tmp_path / "c.yaml", dataset), tmp_path / "sheet.png"
    assert main(["look", str(config), "--png", str(sheet), "--count", "9", "--step", "1"]) == 0
    assert capsys.readouterr().out == f"made     {sheet} with 9 pictures, from step 1 on\n"
    read = make_config(dataset)
    batches = list(islice(global_batches(read, open_source(read).split("train"), start_step=1), 3))
    assert [len(batch) for batch in batches] == [6, 1, 6]  # of the last batch of the epoch only what counts is shown
    ordinals = np.concatenate(batches)[:9]
    with Image.open(sheet) as picture:
        assert picture.size == (8 * 128, 2 * (128 + 32))
        places = [(64 + n % 8 * 128, 64 + n // 8 * 160) for n in range(9)]
        assert [picture.getpixel(place) for place in places] == [COLOURS[n % 3] for n in ordinals]


def test_pictures_are_named_by_label_and_key(dataset: Path) -> None:
    config = make_config(dataset)
    samples = list(islice(training_samples(config, open_source(config), start_step=0, threads=1), 13))
    assert sorted(sample.key for sample in samples) == sorted(f"train/{n}" for n in range(13))
    for sample in samples:
        assert sample.caption == ("red", "green", "blue")[int(sample.key.removeprefix("train/")) % 3]


def test_mixed_pictures_say_so(dataset: Path) -> None:
    config = make_config(dataset, augment__mixup=5.0)
    samples = list(islice(training_samples(config, open_source(config), start_step=0, threads=1), 6))
    assert all(" + " in sample.caption for sample in samples)
    for sample in samples:
        share, own, _, other = sample.caption.split()
        [[pixel]] = np.asarray(Image.open(io.BytesIO(sample.image)))[:1, :1].tolist()
        names = ("red", "green", "blue")
        mean = float(share) * np.array(COLOURS[names.index(own)]) + (1 - float(share)) * np.array(
            COLOURS[names.index(other)]
        )
        assert pixel == pytest.approx(mean, abs=3)


def test_other_targets_are_told(tmp_path: Path) -> None:
    pictures = [data for data, _ in random_pictures(6)]
    several = [(data, labels) for data, labels in zip(pictures, [[0, 2], [], [1]] * 2, strict=True)]
    numbers = [(data, [n / 3, 2.0]) for n, data in enumerate(pictures)]
    for kind, examples, expected in (
        ("multi", several, {"a, c", "-", "b"}),
        ("regression", numbers, {f"{n / 3:.4g}, 2" for n in range(6)}),
    ):
        data = write_dataset(tmp_path / kind, {"train": examples}, kind=kind)
        config = make_config(data)
        samples = islice(training_samples(config, open_source(config), start_step=0, threads=1), 6)
        assert {sample.caption for sample in samples} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--png", "no/such/place.png"], "--png no/such/place.png cannot be written: No such file or directory"),
        (["--png", "x.png", "--step", "-1"], "--step -1 is before the first step, 0"),
    ],
)
def test_refusals(
    dataset: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["look", str(write_config(tmp_path / "c.yaml", dataset)), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_rows_cannot_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path / "data", {"train": random_rows(8)})
    assert main(["look", str(write_config(tmp_path / "c.yaml", data)), "--png", "x.png"]) == 2
    assert f"{data} has rows of 6 features, no pictures to look at" in capsys.readouterr().err
