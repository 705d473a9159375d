"""Re-reads a whole dataset and says what is damaged: every checksum, count and index line, against the manifest. No Beam, no TensorFlow."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shards.example import decode_example
from shards.files import hash_file
from shards.manifest import FileEntry, Manifest, ShardEntry, SplitEntry, read_manifest
from shards.records import DamagedRecord, read_index, read_records

_EXPECTED_TYPES = {"bytes": bytes, "int64": int, "float": float}
Tick = Callable[[ShardEntry], None]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and the file it is wrong in."""

    path: str
    message: str

    def __str__(self) -> str:
        """Reads like `train/train-00001.tfrecord: record 3 at byte 120: data fails its checksum`."""
        return f"{self.path}: {self.message}"


def verify(directory: Path, *, tick: Tick = lambda shard: None) -> list[Problem]:
    """Every problem of the dataset; an empty list means that it is exactly what the build wrote."""
    manifest = read_manifest(directory)
    problems = list(_check_counts(manifest))
    for split in manifest.splits:
        problems += _check_split(directory, manifest, split, tick)
    for entry in manifest.files:
        problems += _check_file(directory, entry)
    return problems + list(_check_strangers(directory, manifest))


def _check_counts(manifest: Manifest) -> Iterator[Problem]:
    if not manifest.counts.balanced:
        yield Problem("manifest.json", f"the accounting does not hold: {manifest.counts}")
    written = sum(split.records for split in manifest.splits)
    if written != manifest.counts.written:
        yield Problem("manifest.json", f"counts.written is {manifest.counts.written}, the splits hold {written}")
    for split in manifest.splits:
        if split.records != sum(shard.records for shard in split.shards):
            yield Problem("manifest.json", f"{split.name} says {split.records} records, its shards say otherwise")


def _check_split(directory: Path, manifest: Manifest, split: SplitEntry, tick: Tick) -> Iterator[Problem]:
    labels: Counter[str] = Counter()
    damaged = False
    for shard in split.shards:
        for problem in _check_shard(directory, manifest, shard, labels):
            damaged = True
            yield problem
        tick(shard)
    if not damaged and dict(labels) != split.labels:
        yield Problem("manifest.json", f"{split.name} holds labels {dict(labels)}, the manifest says {split.labels}")


def _check_shard(directory: Path, manifest: Manifest, shard: ShardEntry, labels: Counter[str]) -> Iterator[Problem]:
    path = directory / shard.path
    extents: list[tuple[int, int]] = []
    try:
        with path.open("rb") as stream:
            hashed = _HashingStream(stream)
            for offset, record in read_records(hashed):
                extents.append((offset, len(record) + 16))
                yield from _check_record(manifest, shard, len(extents) - 1, record, labels)
    except FileNotFoundError:
        yield Problem(shard.path, "the shard is missing")
        return
    except OSError as error:
        yield Problem(shard.path, f"cannot be read: {error.strerror}")
        return
    except DamagedRecord as damage:
        yield Problem(shard.path, str(damage))
        return
    if len(extents) != shard.records:
        yield Problem(shard.path, f"holds {len(extents)} records, the manifest says {shard.records}")
    elif hashed.digest() != shard.sha256:
        yield Problem(shard.path, "sha256 differs from the manifest's, though every record is intact: replaced file?")
    yield from _check_index(directory, shard, extents)


class _HashingStream:
    """Hashes what is read, so that a shard is read once for its records and its sha256."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


def _check_record(
    manifest: Manifest, shard: ShardEntry, number: int, record: bytes, labels: Counter[str]
) -> Iterator[Problem]:
    try:
        example = decode_example(record)
    except ValueError as error:
        yield Problem(shard.path, f"record {number}: {error}")
        return
    for feature in manifest.features:
        values = example.get(feature.name)
        if not values or len(values) != 1 or not isinstance(values[0], _EXPECTED_TYPES[feature.type]):
            yield Problem(shard.path, f"record {number}: feature {feature.name!r} is not one {feature.type} value")
            return
    (label,), (name,) = example["label"], example["label_name"]
    assert isinstance(label, int) and isinstance(name, bytes)
    if not 0 <= label < len(manifest.labels) or manifest.labels[label] != name.decode("utf-8", "replace"):
        yield Problem(shard.path, f"record {number}: label {label} is not {name.decode('utf-8', 'replace')!r}")
    labels[name.decode("utf-8", "replace")] += 1


def _check_index(directory: Path, shard: ShardEntry, extents: list[tuple[int, int]]) -> Iterator[Problem]:
    try:
        rows = read_index(directory / shard.index)
    except FileNotFoundError:
        yield Problem(shard.index, "the index is missing")
        return
    except (OSError, ValueError) as error:
        yield Problem(shard.index, f"not an index: {error}")
        return
    listed = [(int(offset), int(size)) for offset, size in rows]
    if len(listed) != len(extents):
        yield Problem(shard.index, f"lists {len(listed)} records, the shard holds {len(extents)}")
    for number, (found, expected) in enumerate(zip(listed, extents, strict=False)):
        if found != expected:
            yield Problem(shard.index, f"record {number} is listed at {found}, the shard has it at {expected}")
            return
    if len(listed) == len(extents) and hash_file(directory / shard.index) != shard.index_sha256:
        yield Problem(shard.index, "sha256 differs from the manifest's")


def _check_file(directory: Path, entry: FileEntry) -> Iterator[Problem]:
    try:
        if hash_file(directory / entry.path) != entry.sha256:
            yield Problem(entry.path, "sha256 differs from the manifest's")
    except OSError as error:
        yield Problem(entry.path, f"cannot be read: {error.strerror}")


def _check_strangers(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    """Shards that the manifest does not know would be read by whoever reads by a glob."""
    known = {shard.path for split in manifest.splits for shard in split.shards}
    for path in sorted(directory.glob("*/*.tfrecord")):
        if path.relative_to(directory).as_posix() not in known:
            yield Problem(path.relative_to(directory).as_posix(), "is not in the manifest")
