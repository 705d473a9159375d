"""`python -m trainer order`: the keys of each step, from the order alone, without a picture and without TensorFlow."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import UsageError
from shards.order import global_batch
from trainer.__main__ import main
from trainer.commands.order import parse_steps
from trainer.config import TrainConfig
from trainer.reading.keys import keys_of_steps, read_keys
from trainer.reading.source import Split, open_source

RECORDS = 32  # the last global batch of an epoch holds 2 of 6


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(RECORDS + 3)
    directory = write_dataset(
        tmp_path_factory.mktemp("data"), {"train": pictures[:RECORDS], "validation": pictures[RECORDS:]}
    )
    for shard in directory.glob("train/*.tfrecord"):  # nothing but keys may be read
        shard.write_bytes(shard.read_bytes().replace(b"IHDR", b"gone").replace(b"IDAT", b"gone"))
    return directory


def small(dataset: Path, **values: object) -> tuple[TrainConfig, Split]:
    config = make_config(dataset, input={"lanes": 2, "run": 3, "shuffle_records": 8}, **values)
    return config, open_source(config).split("train")


def write_config(path: Path, config: TrainConfig) -> str:
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return str(path)


def test_keys_are_those_of_the_order(dataset: Path) -> None:
    config, split = small(dataset, steps=12)
    found = dict(keys_of_steps(config, split, 0, 12))
    for step in range(12):
        ordinals = global_batch(split.shard_records, config.order, step=step)
        assert found[step] == [f"train/{ordinal}" for ordinal in ordinals]


def test_each_epoch_has_every_example_once(dataset: Path) -> None:
    config, split = small(dataset, steps=18)
    steps = [keys for _, keys in keys_of_steps(config, split, 0, 18)]
    assert [len(keys) for keys in steps] == [6, 6, 6, 6, 6, 2] * 3
    epochs = [[key for keys in steps[6 * n : 6 * n + 6] for key in keys] for n in range(3)]
    every = Counter(f"train/{ordinal}" for ordinal in range(RECORDS))
    assert [Counter(epoch) for epoch in epochs] == [every] * 3
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_a_part_is_a_part_of_the_whole(dataset: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    config, split = small(dataset, steps=18)
    whole = list(keys_of_steps(config, split, 0, 18))
    monkeypatch.setattr("trainer.reading.keys.RECORDS_AT_ONCE", at_once)
    assert list(keys_of_steps(config, split, 4, 15)) == whole[4:15]


def test_keys_of_any_ordinals(dataset: Path) -> None:
    import numpy as np

    _, split = small(dataset)
    assert read_keys(split, np.array([31, 0, 5, 31])) == ["train/31", "train/0", "train/5", "train/31"]


def test_lines_and_json(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, split = small(dataset, steps=None, epochs=2)
    path = write_config(tmp_path / "c.yaml", config)
    keys = dict(keys_of_steps(config, split, 5, 7))
    assert main(["order", path, "--steps", "5:7"]) == 0
    assert capsys.readouterr().out == "".join(f"{step}\t{key}\n" for step in (5, 6) for key in keys[step])
    assert main(["order", path, "--steps", "5:7", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"step": 5, "epoch": 0, "keys": keys[5]}, {"step": 6, "epoch": 1, "keys": keys[6]}]


def test_needs_no_tensorflow(dataset: Path, tmp_path: Path) -> None:
    config, _ = small(dataset, steps=12)
    program = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'keras'])); "
    program += "from trainer.__main__ import main; sys.exit(main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", program, "order", write_config(tmp_path / "c.yaml", config)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Counter(line.split("\t")[0] for line in done.stdout.splitlines()) == {
        str(step): 2 if step in (5, 11) else 6 for step in range(12)
    }


@pytest.mark.parametrize(("text", "steps"), [(":", (0, 9)), ("3:", (3, 9)), (":4", (0, 4)), ("8:9", (8, 9))])
def test_ranges(text: str, steps: tuple[int, int]) -> None:
    assert parse_steps(text, total=9) == steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "--steps '5' is not a range such as 0:10"),
        ("a:b", "--steps 'a:b' is not a range"),
        ("-1:4", "--steps '-1:4' is not a range"),
        ("1:2:3", "--steps '1:2:3' is not a range"),
        ("4:4", "--steps '4:4' has no steps: 4 is not below 4"),
        ("9:", "--steps '9:' has no steps: 9 is not below 9"),
        ("0:10", "--steps '0:10' goes beyond the run's 9 steps; set epochs or steps higher"),
    ],
)
def test_bad_ranges(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_steps(text, total=9)


def test_a_bad_range_on_the_command_line(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = small(dataset, steps=12)
    assert main(["order", write_config(tmp_path / "c.yaml", config), "--steps", "3:1"]) == 2
    assert capsys.readouterr().err == "error: --steps '3:1' has no steps: 3 is not below 1\n"
