"""The measurement of `verify` runs for real, at a tiny size; speed is never asserted."""

from pathlib import Path

import pytest
from shards_data import flip_bit

from benchmarks.durable_verify import empty_cache, measure_verify, read_and_hash, read_plainly, write_dataset
from shards.errors import ShardsmithError
from shards.verify import verify


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "noise", megabytes=2, shards=2)
    return tmp_path / "noise"


def test_the_dataset_is_a_good_one_of_the_size_that_was_asked_for(dataset: Path, tmp_path: Path) -> None:
    assert verify(dataset) == []
    shards = sorted(dataset.glob("train/*.tfrecord"))
    assert [1_000_000 <= shard.stat().st_size < 1_051_000 for shard in shards] == [True, True]
    write_dataset(tmp_path / "again", megabytes=2, shards=2)
    assert [shard.read_bytes() for shard in sorted((tmp_path / "again").glob("train/*.tfrecord"))] == [
        shard.read_bytes() for shard in shards
    ]


def test_rates_and_ratios_of_one_round(dataset: Path) -> None:
    speed = measure_verify(dataset, processes=2, rounds=1)
    assert speed.megabytes == sum(shard.stat().st_size for shard in dataset.glob("train/*.tfrecord")) / 1e6
    assert min(speed.verify, speed.plain, speed.hashed, speed.verify_from_disk, speed.plain_from_disk) > 0
    assert speed.ratio == speed.verify / speed.plain
    assert speed.ratio_to_hashing == speed.verify / speed.hashed
    assert speed.ratio_from_disk == speed.verify_from_disk / speed.plain_from_disk


def test_a_damaged_dataset_is_not_measured(dataset: Path) -> None:
    flip_bit(dataset / "train/train-00001.tfrecord", 77)
    with pytest.raises(ShardsmithError, match="is damaged: train/train-00001.tfrecord: record 0 at byte 0: "):
        measure_verify(dataset, processes=1, rounds=1)


def test_both_readers_read_whole_files(dataset: Path) -> None:
    for path in dataset.glob("train/*.tfrecord"):
        empty_cache(path)
        assert read_plainly(path) == read_and_hash(path) == path.stat().st_size
