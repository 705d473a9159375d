"""What a run writes about what it consumed: the keys that the order says, checked against the records' own bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import ShardsmithError
from shards.example import decode_example, encode_example
from shards.records import RecordWriter, read_records
from trainer.config import TrainConfig
from trainer.learning.consumed import read_consumed
from trainer.learning.loop import train
from trainer.reading.keys import keys_of_steps
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace

PICTURES = random_pictures(20)


def configure(dataset: Path, output: Path, **values: Any) -> TrainConfig:
    return make_config(
        dataset, output, model={"arguments": {"width": 2}}, evaluate_every_epochs=None, **{"steps": 6} | values
    )


def run(config: TrainConfig) -> None:
    train(config, open_source(config), open_workplace(config, Cluster(), threads=None), record_keys=True)


def expected(config: TrainConfig, steps: int) -> dict[int, list[str]]:
    split = open_source(config).split("train")
    return {step: sorted(keys) for step, keys in keys_of_steps(config, split, 0, steps)}


def test_a_run_in_parts_records_the_order(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", {"train": PICTURES})
    run(configure(dataset, tmp_path / "run", steps=3))
    config = configure(dataset, tmp_path / "run", steps=9)
    run(config)
    consumed = read_consumed(tmp_path / "run")
    assert consumed == expected(config, 9)
    assert [len(consumed[step]) for step in range(9)] == [6, 6, 6, 2, 6, 6, 6, 2, 6]
    assert sorted(key for step in range(4) for key in consumed[step]) == sorted(f"train/{n}" for n in range(20))


def test_a_lie_about_a_key_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", {"train": PICTURES}, shards=1)
    monkeypatch.setattr("trainer.learning.consumed.read_keys", lambda split, ordinals: ["train/0"] * len(ordinals))
    with pytest.raises(ShardsmithError, match=r"record \d+ of split 'train' was read with another key than 'train/0'"):
        run(configure(dataset, tmp_path / "run"))


def test_keys_are_those_in_the_records(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", {"train": PICTURES}, shards=1)
    shard = dataset / "train/train-00000.tfrecord"
    with shard.open("rb") as stream:
        records = [decode_example(data) for _, data in read_records(stream)]
    with shard.open("wb") as stream, shard.with_suffix(".idx").open("wb") as index:
        writer = RecordWriter(stream, index)
        for number, record in enumerate(records):
            writer.write(encode_example(record | {"key": f"größe/{number:03}".encode()}))
    config = configure(dataset, tmp_path / "run", steps=4)
    run(config)
    keys = [key for batch in read_consumed(tmp_path / "run").values() for key in batch]
    assert sorted(keys) == [f"größe/{number:03}" for number in range(20)]


def write(output: Path, name: str, *lines: tuple[int, list[str]], tail: str = "") -> None:
    worker, workers = (int(word) for word in name.split("-of-"))
    (output / "keys").mkdir(exist_ok=True)
    text = "".join(
        json.dumps({"step": step, "worker": worker, "workers": workers, "keys": keys}) + "\n" for step, keys in lines
    )
    with (output / f"keys/worker-{name}.jsonl").open("a") as stream:
        stream.write(text + tail)


def test_a_step_counts_once_and_only_whole(tmp_path: Path) -> None:
    write(tmp_path, "0-of-2", (0, ["a"]), (1, ["c"]), (2, ["e"]), tail='{"step": 3, "wor\n\n')
    write(tmp_path, "0-of-2", (1, ["c"]))
    write(tmp_path, "1-of-2", (0, ["b"]), (1, ["d"]))
    write(tmp_path, "0-of-1", (1, ["d", "c"]), (3, ["g"]))
    assert read_consumed(tmp_path) == {0: ["a", "b"], 1: ["c", "d"], 3: ["g"]}


def test_steps_that_do_not_repeat_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "0-of-1", (4, ["a"]), (4, ["b"]))
    with pytest.raises(ShardsmithError, match="worker 0 of 1 did step 4 twice, with other examples"):
        read_consumed(tmp_path)


def test_numbers_of_workers_must_agree(tmp_path: Path) -> None:
    write(tmp_path, "0-of-1", (4, ["a", "b"]))
    write(tmp_path, "0-of-2", (4, ["a"]))
    write(tmp_path, "1-of-2", (4, ["c"]))
    with pytest.raises(ShardsmithError, match="step 4 was done with other examples on another number of workers"):
        read_consumed(tmp_path)
