"""Features read without the pictures between them: what `decode_example` says, and nothing else is looked at."""

import struct
import tempfile
import tracemalloc
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import features, thorough, write_records
from test_example import exactly, examples

from shards.errors import ShardsmithError
from shards.example import Values, decode_example, encode_example
from shards.keys import read_features
from shards.records import masked_crc, read_index


def read(path: Path, names: Collection[str]) -> list[dict[str, Values]]:
    return list(read_features(path, read_index(path.with_suffix(".idx"))[:, 0].tolist(), names))


@thorough
@given(st.lists(examples, min_size=1, max_size=5), st.data())
def test_agrees_with_decoding(contents: list[dict[str, Values]], data: st.DataObject) -> None:
    known = sorted({name for content in contents for name in content})
    names = data.draw(st.sets(st.sampled_from([*known, "no such feature"])))
    records = [encode_example(content) for content in contents]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tfrecord"
        write_records(path, records)
        found = read(path, names)
    wanted = [{name: v for name, v in decode_example(record).items() if name in names} for record in records]
    assert [exactly(each) for each in found] == [exactly(each) for each in wanted]


def test_any_records_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [encode_example(features(number)) for number in range(5)])
    offsets = read_index(path.with_suffix(".idx"))[:, 0]
    found = list(read_features(path, offsets[[3, 0, 3]].tolist(), ("key", "label")))
    assert found == [
        {"key": [b"photos/03.png"], "label": [0]},
        {"key": [b"photos/00.png"], "label": [0]},
        {"key": [b"photos/03.png"], "label": [0]},
    ]
    assert list(read_features(tmp_path / "not there", [], ("key",))) == []


def test_a_picture_is_not_touched(tmp_path: Path) -> None:
    # The picture is a hole of 1 GB in the file: to copy it would take that much memory.
    hole, before, after = 2**30, b"\x0a\x05image", b"\x0a\x0e\x0a\x03key\x12\x07\x0a\x05\x0a\x03a/1"
    value = b"\x0a" + varint(hole)
    bytes_list = b"\x0a" + varint(len(value) + hole) + value
    entry = before + b"\x12" + varint(len(bytes_list) + hole) + bytes_list
    front = b"\x0a" + varint(len(entry) + hole) + entry
    record = b"\x0a" + varint(len(front) + hole + len(after)) + front
    length = struct.pack("<Q", len(record) + hole + len(after))
    path = tmp_path / "a.tfrecord"
    with path.open("wb") as stream:
        stream.write(length + struct.pack("<I", masked_crc(length)) + record)
        stream.seek(hole, 1)
        stream.write(after + bytes(4))
    tracemalloc.start()
    try:
        assert list(read_features(path, [0], ("key",))) == [{"key": [b"a/1"]}]
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def varint(value: int) -> bytes:
    out = []
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-3], "record at byte 0: the file ends before the record does"),
        (lambda data: data[:7], "record at byte 0: unpack_from requires"),
        (lambda data: b"\x07" + data[1:], "record at byte 0: length fails its checksum"),
        (lambda data: data[:12] + b"\x0b" + data[13:], "record at byte 0: not a tf.train.Example: unknown wire type 3"),
        (lambda data: b"", "a.tfrecord cannot be read: cannot mmap an empty file"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [encode_example(features(0))])
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ShardsmithError, match=message):
        list(read_features(path, [0], ("key",)))


def test_a_shard_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ShardsmithError, match="No such file"):
        list(read_features(tmp_path / "a.tfrecord", [0], ("key",)))
