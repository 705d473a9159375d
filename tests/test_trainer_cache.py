"""Copies of shards: the same records in the same order, without asking the dataset's storage twice."""

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from trainer.config import TrainConfig
from trainer.reading import cache as module
from trainer.reading.cache import (
    CachedFile,
    CachedSplit,
    DiskCache,
    MemoryCache,
    available_memory,
    check_cache,
    local_split,
    read_pieces,
)
from trainer.reading.dataset import Share, evaluation_dataset, training_dataset, training_records
from trainer.reading.source import open_source

RECORDS, BATCH = 40, 8
SHARE = Share(worker=0, workers=1, batch=BATCH, threads=2)
STEPS = RECORDS // BATCH  # in an epoch


def write(directory: Path) -> Path:
    pictures = random_pictures(RECORDS)
    return write_dataset(directory, {"train": pictures, "validation": pictures[:16]})


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def config_for(dataset: Path, kind: str, **values: Any) -> TrainConfig:
    folder = {"input__cache_folder": str(dataset.parent / "cache")} if kind == "disk" else {}
    settings = {"global_batch": BATCH, "input__lanes": 4, "input__run": 3, "input__shuffle_records": 16}
    return make_config(dataset, **settings | {"input__cache": kind} | folder | values)


def delivered(config: TrainConfig, steps: int) -> list[tuple[int, bytes]]:
    records = training_records(config, open_source(config), SHARE, start_step=0)
    return [(row["ordinal"], row["image"]) for row in islice(records.as_numpy_iterator(), steps * BATCH)]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_cache_changes_neither_order_nor_bytes(dataset: Path, kind: str) -> None:
    assert delivered(config_for(dataset, kind), 2 * STEPS) == delivered(config_for(dataset, "none"), 2 * STEPS)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_second_epoch_reads_nothing_from_the_dataset(dataset: Path, kind: str) -> None:
    config = config_for(dataset, kind)
    expected = [batch["image"] for batch in batches(config_for(dataset, "none"), 3 * STEPS)]
    found = batches(config, 3 * STEPS)
    first = [next(found)["image"] for _ in range(STEPS)]
    shutil.rmtree(dataset / "train")
    np.testing.assert_array_equal([*first, *(batch["image"] for batch in found)], expected)


def batches(config: TrainConfig, steps: int) -> Iterator[Any]:
    return islice(training_dataset(config, open_source(config), SHARE, start_step=0).as_numpy_iterator(), steps)


def test_without_a_cache_a_vanished_dataset_is_missed(dataset: Path) -> None:
    # Otherwise the test above would prove nothing.
    found = batches(config_for(dataset, "none"), 3 * STEPS)
    next(found)
    shutil.rmtree(dataset / "train")
    with pytest.raises(tf.errors.OpError):
        list(found)


def test_evaluation_reads_copies_too(dataset: Path) -> None:
    config = config_for(dataset, "disk")
    passes = evaluation_dataset(config, open_source(config), SHARE, split="validation").as_numpy_iterator()
    first = [next(passes)["image"] for _ in range(2)]
    shutil.rmtree(dataset / "validation")
    np.testing.assert_array_equal([next(passes)["image"] for _ in range(8)], first * 4)


def test_a_second_run_finds_the_copies_on_disk(dataset: Path) -> None:
    config = config_for(dataset, "disk")
    expected = delivered(config, STEPS)
    source = open_source(config)
    shutil.rmtree(dataset / "train")
    again = training_records(config, source, SHARE, start_step=0)
    assert [(row["ordinal"], row["image"]) for row in islice(again.as_numpy_iterator(), STEPS * BATCH)] == expected


def test_only_shards_that_are_wanted_are_copied(dataset: Path) -> None:
    config = config_for(dataset, "disk")
    split = local_split(config, open_source(config), "train")
    assert isinstance(split, CachedSplit)
    split.bring([1, 1])
    copies = {path.name.partition("-")[2] for path in (dataset.parent / "cache").iterdir() if path.name != ".lock"}
    assert copies == {"train-00001.tfrecord", "train-00001.idx"}
    assert Path(split.paths[1]).read_bytes() == (dataset / "train/train-00001.tfrecord").read_bytes()


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("name", ["train-00001.tfrecord", "train-00002.idx"])
def test_a_damaged_arrival_is_refused_by_name(dataset: Path, kind: str, name: str) -> None:
    path = dataset / "train" / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    config = config_for(dataset, kind)
    split = local_split(config, open_source(config), "train")
    with pytest.raises(ShardsmithError, match=f"{path} arrived in the cache with another sha256 than the manifest's"):
        split.bring(range(3))
    found = batches(config, STEPS)
    with pytest.raises(tf.errors.OpError, match=f"{name} arrived in the cache with another sha256"):
        list(found)
    assert not list((dataset.parent).glob(f"cache/*{name}"))


def test_a_missing_origin_is_named(dataset: Path) -> None:
    config = config_for(dataset, "memory")
    split = local_split(config, open_source(config), "train")
    (dataset / "train/train-00000.tfrecord").unlink()
    with pytest.raises(ShardsmithError, match="train-00000.tfrecord cannot be copied into the cache: No such file"):
        split.bring([0])


def made(tmp_path: Path, name: str, size: int) -> CachedFile:
    path = tmp_path / name
    path.write_bytes(os.urandom(size))
    return CachedFile(str(path), hash_file(path), size)


def test_what_is_longest_unused_makes_room(tmp_path: Path) -> None:
    files = [made(tmp_path, f"old-{number}", 100) for number in range(3)]
    with_lock = DiskCache(tmp_path / "cache", files, most=300)
    for age, file in enumerate(files):
        with_lock.bring([file])
        os.utime(with_lock.path(file), (1000 + age, 1000 + age))
    os.utime(with_lock.path(files[0]), (2000, 2000))
    with_lock.close()
    new = made(tmp_path, "new", 150)
    cache = DiskCache(tmp_path / "cache", [new], most=300)
    cache.bring([new])
    assert [cache.holds(file) for file in [*files, new]] == [True, False, False, True]


def test_what_another_run_uses_stays(tmp_path: Path) -> None:
    old, new = made(tmp_path, "old", 100), made(tmp_path, "new", 100)
    used = DiskCache(tmp_path / "cache", [old], most=100)
    used.bring([old])
    cache = DiskCache(tmp_path / "cache", [new], most=100)
    assert cache.holds(old)


def test_the_fetch_is_a_parameter(tmp_path: Path) -> None:
    file = made(tmp_path, "far", 3_000_000)
    asked = []

    def fetch(origin: str) -> Iterator[bytes]:
        asked.append(origin)
        yield from read_pieces(origin)

    for cache in (DiskCache(tmp_path / "cache", [file], most=10**9, fetch=fetch), MemoryCache([file], fetch=fetch)):
        cache.bring([file])
        cache.bring([file])
        assert Path(cache.path(file)).read_bytes() == Path(file.origin).read_bytes()
    assert asked == [file.origin] * 2


def test_what_does_not_fit_is_refused(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(kind: str, **values: Any) -> str:
        config = config_for(dataset, kind, **values)
        with pytest.raises(UsageError) as caught:
            check_cache(config, open_source(config))
        return str(caught.value)

    for kind in ("none", "memory", "disk"):
        check_cache(config_for(dataset, kind), open_source(config_for(dataset, kind)))
    assert "input.cache_gb 1e-06 does not hold the" in refusal("disk", input__cache_gb=1e-6)
    monkeypatch.setattr(module, "available_memory", lambda: 5000)
    assert "4e-06 GB of memory that can be used; use input.cache disk, or set input.cache to none" in refusal("memory")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 6, 3000))  # type: ignore[attr-defined]
    assert f"3e-06 GB of space in {dataset.parent}/cache; set input.cache_folder to a larger disk" in refusal("disk")


def test_too_many_files_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (100, 513))
    with pytest.raises(ShardsmithError, match="needs 514 open files for 2 shards and indexes, the limit is 513"):
        MemoryCache([made(tmp_path, "one", 1), made(tmp_path, "two", 1)])


def test_available_memory_is_that_of_the_machine_or_less() -> None:
    assert 0 < available_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_folder_is_for_disk() -> None:
    with pytest.raises(UsageError, match="cache_folder is for cache: disk; a cache in memory has none"):
        make_config("data", input__cache="memory", input__cache_folder="here")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardsmithError, match="input.cache_folder .* cannot be written: Not a directory"):
        DiskCache(tmp_path / "file/cache", [], most=1)
