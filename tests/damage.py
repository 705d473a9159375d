"""Damages small datasets in the ways that disks, networks and bad inputs do."""

import shutil
from collections.abc import Callable
from pathlib import Path

from shards.example import decode_example, encode_example
from shards.records import RecordWriter, read_index, read_records

Change = Callable[[bytes], bytes]


def copy(dataset: Path, to: Path) -> Path:
    """The dataset in another place, to be damaged."""
    return Path(shutil.copytree(dataset, to))


def flip(shard: Path, record: int) -> None:
    """Changes a byte in the middle of a record, which then fails its checksum."""
    offset, size = read_index(shard.with_suffix(".idx"))[record].tolist()
    content = bytearray(shard.read_bytes())
    content[offset + size // 2] ^= 0xFF
    shard.write_bytes(content)


def cut(shard: Path, record: int, *, inside: bool = True) -> None:
    """Lets the file end inside a record, or just before it."""
    offset, size = read_index(shard.with_suffix(".idx"))[record].tolist()
    shard.write_bytes(shard.read_bytes()[: offset + (size // 2 if inside else 0)])


def rewrite(shard: Path, record: int, change: Change) -> None:
    """Replaces a record by another with right checksums, as a faulty writer would."""
    with shard.open("rb") as stream:
        records = [data for _, data in read_records(stream)]
    records[record] = change(records[record])
    with shard.open("wb") as stream, shard.with_suffix(".idx").open("wb") as index:
        writer = RecordWriter(stream, index)
        for data in records:
            writer.write(data)


def break_picture(shard: Path, record: int) -> None:
    """Cuts the picture in a record short."""

    def change(data: bytes) -> bytes:
        features = decode_example(data)
        [picture] = features["image"]
        assert isinstance(picture, bytes)
        return encode_example(features | {"image": picture[: len(picture) // 2]})

    rewrite(shard, record, change)
