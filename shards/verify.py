"""Re-reads a whole dataset and says what is damaged: every checksum, count and index line, against the manifest."""

import hashlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

from shards.example import Values, decode_example
from shards.files import hash_file
from shards.manifest import MANIFEST, FeatureEntry, FileEntry, Manifest, ShardEntry, SplitEntry, read_manifest
from shards.records import FRAMING_BYTES, DamagedRecord, parse_index, read_records

Tick = Callable[[ShardEntry], None]
Extents = list[tuple[int, int]]  # (offset, size) of each record of a shard

_PYTHON_TYPES = {"bytes": bytes, "int64": int, "float": float}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and the file it is wrong in."""

    path: str
    message: str

    def __str__(self) -> str:
        """Reads like `train/train-00001.tfrecord: record 3 at byte 120: data fails its checksum`."""
        return f"{self.path}: {self.message}"


def verify(directory: Path, *, processes: int = 1, tick: Tick = lambda shard: None) -> list[Problem]:
    """Every problem of the dataset; an empty list means that each file is what the build wrote, and holds together.

    `processes` shards are checked at a time; `tick` is called after each.
    """
    manifest = read_manifest(directory)
    check = partial(_check_shard, directory, _Rules(features=manifest.features, labels=manifest.labels))
    problems = list(_check_counts(manifest))
    reports = _check_shards([shard for split in manifest.splits for shard in split.shards], check, processes=processes)
    for split in manifest.splits:
        labels: Counter[str] = Counter()
        damage: list[Problem] = []
        for shard in split.shards:
            report = next(reports)
            damage += report.problems
            labels.update(report.labels)
            tick(shard)
        problems += damage or _check_labels(split, labels)
    for entry in (*manifest.files, *manifest.retired):
        problems += _check_file(directory, entry)
    return problems + list(_check_strangers(directory, manifest))


def _check_counts(manifest: Manifest) -> Iterator[Problem]:
    for problem in manifest.counts.problems():
        yield Problem(MANIFEST, f"the accounting does not hold: {problem}")
    written = sum(split.records for split in manifest.splits)
    if written != manifest.counts.written:
        yield Problem(MANIFEST, f"counts.written is {manifest.counts.written}, the splits have {written} records")
    for split in manifest.splits:
        records, size = sum(shard.records for shard in split.shards), sum(shard.bytes for shard in split.shards)
        if (split.records, split.bytes) != (records, size):
            said = f"{split.records} records in {split.bytes} bytes"
            yield Problem(MANIFEST, f"split {split.name!r} has {said}, its shards have {records} in {size}")
        accounted = sum(account.written for account in manifest.counts.sources if account.split == split.name)
        if accounted != split.records:
            yield Problem(MANIFEST, f"split {split.name!r} has {split.records} records, its sources have {accounted}")


@dataclass(frozen=True)
class _Rules:
    """What the manifest promises of every record: the values of each feature, and label ids with their names."""

    features: Sequence[FeatureEntry]
    labels: Sequence[str]

    def labels_of(self, record: bytes) -> list[str]:
        """The names of the record's labels; raises ValueError if the record breaks a rule."""
        example = decode_example(record)
        for feature in self.features:
            _check_values(feature, example.get(feature.name))
        self._check_boxes(example)
        numbers, names = example.get("label", []), example.get("label_name", [])
        if len(numbers) != len(names):
            raise ValueError(f"{len(numbers)} labels have {len(names)} names")
        return [self._named(number, name) for number, name in zip(numbers, names, strict=True)]

    def _check_boxes(self, example: Mapping[str, Values]) -> None:
        """Boxes are four fractions each, and every feature per box has a value for each."""
        if not any(feature.per == "box" for feature in self.features):
            return
        count, rest = divmod(len(example["boxes"]), 4)
        if rest:
            raise ValueError(f"feature 'boxes' has {4 * count + rest} values, which are no boxes of four")
        for number in range(count):
            top, left, bottom, right = (float(side) for side in example["boxes"][4 * number : 4 * number + 4])
            if not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
                raise ValueError(f"box {number} is {top:g}, {left:g}, {bottom:g}, {right:g}: not inside the picture")
        for feature in self.features:
            if feature.per == "box" and feature.name != "boxes" and len(example[feature.name]) != count:
                raise ValueError(f"feature {feature.name!r} has {len(example[feature.name])} values for {count} boxes")

    def _named(self, number: object, name: object) -> str:
        assert isinstance(number, int), "checked with the features"
        assert isinstance(name, bytes), "checked with the features"
        if not 0 <= number < len(self.labels) or self.labels[number].encode() != name:
            raise ValueError(f"label {number} is not {name.decode('utf-8', 'backslashreplace')!r}")
        return self.labels[number]


def _check_values(feature: FeatureEntry, values: Values | None) -> None:
    wanted = (
        f"one {feature.type} value" if feature.length == 1 else f"{feature.length or 'a list of'} {feature.type} values"
    )
    if values is None or (feature.length is not None and len(values) != feature.length):
        raise ValueError(f"feature {feature.name!r} is not {wanted}")
    if not all(isinstance(value, _PYTHON_TYPES[feature.type]) for value in values):
        raise ValueError(f"feature {feature.name!r} is not {wanted}")


def _check_labels(split: SplitEntry, labels: Counter[str]) -> Iterator[Problem]:
    if dict(labels) != split.labels:
        yield Problem(MANIFEST, f"split {split.name!r} lists labels {split.labels}, its records have {dict(labels)}")


@dataclass(frozen=True)
class _Report:
    """What reading one shard showed."""

    problems: list[Problem]
    labels: Counter[str]


def _check_shards(
    shards: Sequence[ShardEntry], check: Callable[[ShardEntry], _Report], *, processes: int
) -> Iterator[_Report]:
    """The reports in the order of the shards."""
    if processes == 1:
        yield from map(check, shards)
        return
    # Spawned, because forking is not safe beside the thread of a progress bar.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_ignore_interrupt) as pool:
        yield from pool.map(check, shards)


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's to handle, without a traceback from each child


def _check_shard(directory: Path, rules: _Rules, shard: ShardEntry) -> _Report:
    report, extents = _Report([], Counter()), Extents()
    report.problems.extend(_check_records(directory, shard, rules, report.labels, extents))
    report.problems.extend(_check_index(directory, shard, None if report.problems else extents))
    return report


def _check_records(
    directory: Path, shard: ShardEntry, rules: _Rules, labels: Counter[str], extents: Extents
) -> Iterator[Problem]:
    """Reads a shard; adds to `labels` what its records are, and to `extents` where they lie."""
    try:
        with (directory / shard.path).open("rb") as stream:
            hashed = _HashingStream(stream)
            for offset, record in read_records(hashed):
                try:
                    labels.update(rules.labels_of(record))
                except ValueError as error:
                    yield Problem(shard.path, f"record {len(extents)} at byte {offset}: {error}")
                extents.append((offset, len(record) + FRAMING_BYTES))
    except FileNotFoundError:
        yield Problem(shard.path, "the shard is missing")
    except OSError as error:
        yield Problem(shard.path, f"cannot be read: {error.strerror}")
    except DamagedRecord as damage:
        yield Problem(shard.path, str(damage))
    else:
        if (len(extents), hashed.bytes) != (shard.records, shard.bytes):
            said = f"{shard.records} in {shard.bytes}"
            yield Problem(shard.path, f"has {len(extents)} records in {hashed.bytes} bytes, the manifest says {said}")
        elif hashed.sha256() != shard.sha256:
            yield Problem(
                shard.path, "sha256 differs from the manifest's, though every record is intact: replaced file?"
            )


class _HashingStream:
    """Hashes what is read, so that a shard is read once for its records and its sha256."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._hash = stream, hashlib.sha256()
        self.bytes = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self.bytes += len(data)
        return data

    def sha256(self) -> str:
        return self._hash.hexdigest()


def _check_index(directory: Path, shard: ShardEntry, extents: Extents | None) -> Iterator[Problem]:
    """Checks the index itself and, if the shard could be read, against where its records lie."""
    try:
        content = (directory / shard.index).read_bytes()
        listed = [(offset, size) for offset, size in parse_index(content).tolist()]
    except FileNotFoundError:
        yield Problem(shard.index, "the index is missing")
    except OSError as error:
        yield Problem(shard.index, f"cannot be read: {error.strerror}")
    except ValueError as error:
        yield Problem(shard.index, f"not an index: {error}")
    else:
        if extents is not None and len(listed) != len(extents):
            yield Problem(shard.index, f"lists {len(listed)} records, the shard has {len(extents)}")
        elif extents is not None and listed != extents:
            number = next(n for n, (found, extent) in enumerate(zip(listed, extents, strict=True)) if found != extent)
            said = "record {} is listed at byte {} with {} bytes, the shard has it at byte {} with {}"
            yield Problem(shard.index, said.format(number, *listed[number], *extents[number]))
        elif hashlib.sha256(content).hexdigest() != shard.index_sha256:
            yield Problem(shard.index, "sha256 differs from the manifest's")


def _check_file(directory: Path, entry: FileEntry) -> Iterator[Problem]:
    try:
        size = (directory / entry.path).stat().st_size
        if size != entry.bytes:
            yield Problem(entry.path, f"has {size} bytes, the manifest says {entry.bytes}")
        elif hash_file(directory / entry.path) != entry.sha256:
            yield Problem(entry.path, "sha256 differs from the manifest's")
    except FileNotFoundError:
        yield Problem(entry.path, "the file is missing")
    except OSError as error:
        yield Problem(entry.path, f"cannot be read: {error.strerror}")


def _check_strangers(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    """Shards that the manifest does not know would be read by whoever reads by a glob."""
    known = {shard.path for split in manifest.splits for shard in split.shards} | {e.path for e in manifest.retired}
    for path in sorted(directory.glob("*/*.tfrecord")):
        name = path.relative_to(directory).as_posix()
        if name not in known:
            yield Problem(name, "is not in the manifest")
