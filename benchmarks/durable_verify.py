"""What verifying costs: the speed of a full check against plain sequential reading of the same files in the same run.

Both are measured from the page cache and from the disk, and so is reading with sha256 alone, which bounds every check
that proves that a file is the one that was written. All read in as many processes. The readers' are running before the
clock starts; those of the check are not, for whoever checks waits for them too.
"""

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Literal

from shards.errors import ShardsmithError
from shards.example import encode_example
from shards.files import write_atomically
from shards.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    Counts,
    FeatureEntry,
    Manifest,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    read_manifest,
)
from shards.records import RecordWriter
from shards.verify import verify

LABELS = tuple(f"class {number:03}" for number in range(100))
TYPES: dict[str, Literal["bytes", "int64"]] = {
    "height": "int64",
    "image": "bytes",
    "key": "bytes",
    "label": "int64",
    "label_name": "bytes",
    "width": "int64",
}
SMALLEST_PICTURE, LARGEST_PICTURE = 20_000, 50_000
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class VerifySpeed:
    """MB/s, medians of all rounds."""

    verify: float
    plain: float  # reading alone
    hashed: float  # reading with sha256
    verify_from_disk: float
    plain_from_disk: float
    megabytes: float

    @property
    def ratio(self) -> float:
        """The speed of a check against that of reading, from the page cache."""
        return self.verify / self.plain

    @property
    def ratio_to_hashing(self) -> float:
        """The speed of a check against that of reading with sha256, from the page cache."""
        return self.verify / self.hashed

    @property
    def ratio_from_disk(self) -> float:
        """The speed of a check against that of reading, from the disk."""
        return self.verify_from_disk / self.plain_from_disk


def measure_verify(directory: Path, *, processes: int | None = None, rounds: int = 5) -> VerifySpeed:
    """Verifies a dataset and reads its shards in turns; raises ShardsmithError if the dataset is damaged."""
    processes = processes or os.cpu_count() or 1
    paths = [directory / shard.path for split in read_manifest(directory).splits for shard in split.shards]
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.2] * processes))  # starts them all
        turns = {
            "verify": _Turn(fill_cache, lambda: check(directory, processes=processes)),
            "plain": _Turn(fill_cache, lambda: sum(pool.map(read_plainly, paths))),
            "hashed": _Turn(fill_cache, lambda: sum(pool.map(read_and_hash, paths))),
            "verify_from_disk": _Turn(empty_cache, lambda: check(directory, processes=processes)),
            "plain_from_disk": _Turn(empty_cache, lambda: sum(pool.map(read_plainly, paths))),
        }
        taken = [{name: turn.seconds(paths) for name, turn in turns.items()} for _ in range(rounds)]
    rates = {name: megabytes / median(seconds[name] for seconds in taken) for name in turns}
    return VerifySpeed(megabytes=megabytes, **rates)


@dataclass(frozen=True)
class _Turn:
    prepare: Callable[[Path], object]
    run: Callable[[], object]

    def seconds(self, paths: Sequence[Path]) -> float:
        """How long the run takes once every file is prepared."""
        for path in paths:
            self.prepare(path)
        started = time.perf_counter()
        self.run()
        return time.perf_counter() - started


def check(directory: Path, *, processes: int) -> None:
    """A full check, as the command does it."""
    problems = verify(directory, processes=processes)
    if problems:
        raise ShardsmithError(f"{directory} is damaged: {problems[0]}")


def read_plainly(path: Path) -> int:
    """Reads a file as fast as it goes, and returns its size."""
    return sum(map(len, _read_blocks(path)))


def read_and_hash(path: Path) -> int:
    """Reads a file, feeds it to sha256, and returns its size."""
    sha256, size = hashlib.sha256(), 0
    for block in _read_blocks(path):
        sha256.update(block)
        size += len(block)
    return size


def _read_blocks(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            yield buffer[:count]


def fill_cache(path: Path) -> None:
    """Has the whole file in the page cache."""
    read_plainly(path)


def empty_cache(path: Path) -> None:
    """Has nothing of the file in the page cache; what the disk itself or its host keeps is beyond reach."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what is not yet on the disk cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def write_dataset(directory: Path, *, megabytes: int, shards: int) -> Manifest:
    """Writes a dataset of labelled pictures of 20 to 50 KB; they are noise, which no check but decoding minds."""
    chance = random.Random(4)
    noise = chance.randbytes(_BLOCK_BYTES)
    (directory / "train").mkdir(parents=True)
    entries = [
        _write_shard(directory, number, chance, noise, size=megabytes * 1e6 / shards) for number in range(shards)
    ]
    manifest = make_manifest(entries)
    write_atomically(directory / MANIFEST, manifest.to_json().encode())
    return manifest


def _write_shard(directory: Path, number: int, chance: random.Random, noise: bytes, *, size: float) -> ShardEntry:
    name = f"train/train-{number:05}"
    with (directory / f"{name}.tfrecord").open("wb") as stream, (directory / f"{name}.idx").open("wb") as index:
        writer = RecordWriter(stream, index)
        while writer.bytes < size:
            writer.write(_make_record(f"{name}/{writer.records:07}.jpg", writer.records, chance, noise))
    return ShardEntry.of(name, writer.finish())


def _make_record(key: str, number: int, chance: random.Random, noise: bytes) -> bytes:
    size = chance.randrange(SMALLEST_PICTURE, LARGEST_PICTURE)
    start, label = chance.randrange(len(noise) - size), number % len(LABELS)
    return encode_example(
        {
            "image": noise[start : start + size],
            "key": key.encode(),
            "label": [label],
            "label_name": LABELS[label].encode(),
            "height": [chance.randrange(200, 300)],
            "width": [chance.randrange(200, 300)],
        }
    )


def make_manifest(shards: Sequence[ShardEntry]) -> Manifest:
    """The manifest of a training split whose records have the labels in turn, shard by shard."""
    records = sum(shard.records for shard in shards)
    labels = {name: sum(len(range(n, shard.records, len(LABELS))) for shard in shards) for n, name in enumerate(LABELS)}
    size = sum(shard.bytes for shard in shards)
    account = SourceEntry(source="noise", split="train", listed=records, written=records, rejected=0, duplicates=0)
    return Manifest(
        format_version=FORMAT_VERSION,
        name="noise",
        fingerprint="",
        made_by={},
        settings={},
        label_kind="single",
        labels=LABELS,
        features=tuple(FeatureEntry(name=name, type=kind, description="") for name, kind in TYPES.items()),
        counts=Counts(listed=records, written=records, rejected={}, duplicates=0, sources=(account,)),
        splits=(SplitEntry(name="train", records=records, bytes=size, labels=labels, shards=tuple(shards)),),
        files=(),
    )
