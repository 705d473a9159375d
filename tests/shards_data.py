"""Small datasets for the tests of `shards`, written with its own code: no Beam, no TensorFlow."""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings
from PIL import Image

from shards.example import Value, encode_example
from shards.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    Counts,
    FeatureEntry,
    FileEntry,
    Manifest,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    read_manifest,
)
from shards.records import RecordWriter, WrittenShard

LABELS = ("daisy", "löwenzahn", "玫瑰")
FEATURES = {
    "image": "bytes",
    "label": "int64",
    "label_name": "bytes",
    "key": "bytes",
    "height": "int64",
    "width": "int64",
    "weight": "float",
}
FILES = {"schema.pbtxt": b'feature { name: "image" }\n', "transform_fn/saved_model.pb": bytes(range(256))}
SPLITS = {"train": (3, 0, 2), "test": (2,)}

# The machines that run tests are shared and slow at times: how long an example takes says nothing.
thorough = settings(deadline=None, max_examples=100)
brief = settings(deadline=None, max_examples=60)


def png(colour: tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> bytes:
    """A picture of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def features(number: int, **changes: Value) -> dict[str, Value]:
    """The features of record `number` of a dataset."""
    label = number % len(LABELS)
    return {
        "image": png((number * 40 % 256, 99, 7)),
        "label": [label],
        "label_name": LABELS[label].encode(),
        "key": f"photos/{number:02}.png".encode(),
        "height": [4],
        "width": [6],
        "weight": [number / 2],
        **changes,
    }


def write_records(path: Path, records: Iterable[bytes]) -> WrittenShard:
    """Writes a shard and, beside it, its index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream, path.with_suffix(".idx").open("wb") as index:
        writer = RecordWriter(stream, index)
        for record in records:
            writer.write(record)
    return writer.finish()


def write_shard(directory: Path, name: str, records: Iterable[bytes]) -> ShardEntry:
    """Writes a shard such as `train/train-00000` and returns its entry."""
    written = write_records(directory / f"{name}.tfrecord", records)
    return ShardEntry.of(name, written, inputs=f"inputs of {name}")


def write_split(directory: Path, name: str, shards: Sequence[Sequence[Mapping[str, Value]]]) -> SplitEntry:
    """Writes one shard for each list of features."""
    entries = tuple(
        write_shard(directory, f"{name}/{name}-{number:05}", map(encode_example, shard))
        for number, shard in enumerate(shards)
    )
    labels = Counter(example["label_name"].decode() for shard in shards for example in shard)  # type: ignore[union-attr]
    return SplitEntry(
        name=name,
        records=sum(entry.records for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        labels=dict(sorted(labels.items())),
        shards=entries,
    )


def write_file(directory: Path, path: str, content: bytes) -> FileEntry:
    """Writes another file of the dataset."""
    (directory / path).parent.mkdir(parents=True, exist_ok=True)
    (directory / path).write_bytes(content)
    return FileEntry(path=path, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_dataset(directory: Path, splits: Mapping[str, Sequence[int]] = SPLITS) -> Manifest:
    """Writes a complete dataset; `splits` says how many records each shard of each split has."""
    number, entries = 0, []
    for name, sizes in splits.items():
        shards = []
        for size in sizes:
            shards.append([features(n) for n in range(number, number + size)])
            number += size
        entries.append(write_split(directory, name, shards))
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name="flowers",
        fingerprint="0123456789abcdef",
        made_by={"shardsmith": "0.1.0"},
        settings={"image": {"resize": {"mode": "none"}}, "splits": {"salt": "größe"}},
        label_kind="single",
        labels=LABELS,
        features=tuple(
            FeatureEntry(name=name, type=kind, description=f"the {name}")  # type: ignore[arg-type]
            for name, kind in FEATURES.items()
        ),
        counts=make_counts({entry.name: entry.records for entry in entries} or {"train": 0}, rejected=2, duplicates=1),
        splits=tuple(entries),
        files=tuple(write_file(directory, path, content) for path, content in FILES.items()),
    )
    save_manifest(directory, manifest)
    return manifest


def make_counts(written: Mapping[str, int], *, rejected: int = 0, duplicates: int = 0) -> Counts:
    """The accounts of one source, all of whose rejects and duplicates are in the first split."""
    lost = [(rejected, duplicates)] + [(0, 0)] * (len(written) - 1)
    return Counts(
        listed=sum(written.values()) + rejected + duplicates,
        written=sum(written.values()),
        rejected={"truncated": rejected} if rejected else {},
        duplicates=duplicates,
        sources=tuple(
            SourceEntry(
                source="default", split=split, listed=count + bad + twice, written=count, rejected=bad, duplicates=twice
            )
            for (split, count), (bad, twice) in zip(written.items(), lost, strict=True)
        ),
    )


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest the way a build does."""
    (directory / MANIFEST).write_bytes(manifest.to_json().encode())


def change_manifest(directory: Path, **changes: Any) -> None:
    """Replaces top-level values and seals the manifest again: a wrong manifest, but not a damaged one."""
    save_manifest(directory, read_manifest(directory).model_copy(update=changes))


def change_split(directory: Path, position: int, **changes: Any) -> None:
    """Replaces values of one split in the manifest."""
    splits = list(read_manifest(directory).splits)
    splits[position] = splits[position].model_copy(update=changes)
    change_manifest(directory, splits=tuple(splits))


def flip_bit(path: Path, bit: int) -> None:
    """Flips one bit of a file; `bit` counts from its beginning, and again if it is past the end."""
    content = bytearray(path.read_bytes())
    byte, shift = divmod(bit % (8 * len(content)), 8)
    content[byte] ^= 1 << shift
    path.write_bytes(content)
