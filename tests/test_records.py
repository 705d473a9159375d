"""TFRecord framing and indexes, held against bytes made by hand and against what TensorFlow writes and reads."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import brief, thorough, write_records

from shards.records import DamagedRecord, RecordWriter, frame, masked_crc, parse_index, read_index, read_records

records = st.lists(st.binary(max_size=64), max_size=6)
# What TensorFlow 2.21 writes for the record b"abc": length, its masked CRC, data, its masked CRC.
ABC = bytes.fromhex("0300000000000000 b099490e 616263 6e57f121")


def read_all(content: bytes) -> list[tuple[int, bytes]]:
    return list(read_records(io.BytesIO(content)))


def test_crc_is_the_published_check_value_masked() -> None:
    # Catalogues of CRCs give 0xE3069283 for these digits; TFRecord rotates it right by 15 and adds a constant.
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32


def test_framing_of_one_record_byte_for_byte() -> None:
    assert frame(b"abc").hex() == ABC.hex()
    assert frame(b"")[:8] == bytes(8)
    assert len(frame(b"")) == 16


@thorough
@given(records)
def test_what_is_written_is_read_back_with_its_offsets(data: list[bytes]) -> None:
    stream, index = io.BytesIO(), io.BytesIO()
    writer = RecordWriter(stream, index)
    for record in data:
        writer.write(record)
    found = read_all(stream.getvalue())
    assert [record for _, record in found] == data
    rows = parse_index(index.getvalue())
    assert rows.tolist() == [[offset, len(record) + 16] for offset, record in found]


def test_a_finished_shard_tells_its_weight(tmp_path: Path) -> None:
    written = write_records(tmp_path / "x.tfrecord", [b"abc", b""])
    assert (written.records, written.bytes) == (2, 19 + 16)
    assert (tmp_path / "x.tfrecord").read_bytes() == ABC + frame(b"")
    assert (tmp_path / "x.idx").read_bytes() == b"0 19\n19 16\n"
    # sha256sum of the two files
    assert written.sha256 == "5f02f0b23f01d9bcd985c2dc9b3ff5dd67ca5f87a39131283fe5e56adf3d1844"
    assert written.index_sha256 == "19d14f4aebb31090ee59f8f05e59250f4ca2c7335fea03f835ac44998cf47cfd"


def test_a_shard_without_records_is_an_empty_file_with_an_empty_index(tmp_path: Path) -> None:
    written = write_records(tmp_path / "x.tfrecord", [])
    assert (written.records, written.bytes) == (0, 0)
    assert read_all((tmp_path / "x.tfrecord").read_bytes()) == []
    assert read_index(tmp_path / "x.idx").shape == (0, 2)


@brief
@given(records)
def test_tensorflow_writes_the_same_bytes_and_reads_ours(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes]
) -> None:
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("tf")
    write_records(folder / "ours.tfrecord", data)
    with tf.io.TFRecordWriter(str(folder / "theirs.tfrecord")) as writer:
        for record in data:
            writer.write(record)
    assert (folder / "ours.tfrecord").read_bytes() == (folder / "theirs.tfrecord").read_bytes()
    read = tf.data.TFRecordDataset(str(folder / "ours.tfrecord")).as_numpy_iterator()
    assert list(read) == data


def test_the_index_cuts_out_a_record_that_tensorflow_reads(tmp_path: Path) -> None:
    import tensorflow as tf

    write_records(tmp_path / "x.tfrecord", [b"first", b"second", b"third"])
    offset, size = read_index(tmp_path / "x.idx")[1].tolist()
    (tmp_path / "y.tfrecord").write_bytes((tmp_path / "x.tfrecord").read_bytes()[offset : offset + size])
    read = tf.data.TFRecordDataset(str(tmp_path / "y.tfrecord")).as_numpy_iterator()
    assert list(read) == [b"second"]


# Two records of 3 and 5 bytes: the second begins at byte 19, its data at byte 31, and the file ends at byte 40.
TWO = frame(b"abc") + frame(b"defgh")
DAMAGES = {
    "a length of the second record": (19, "record 1 at byte 19: length fails its checksum"),
    "the length's checksum": (27, "record 1 at byte 19: length fails its checksum"),
    "the data": (31, "record 1 at byte 19: data fails its checksum"),
    "the data's checksum": (36, "record 1 at byte 19: data fails its checksum"),
    "the first record": (12, "record 0 at byte 0: data fails its checksum"),
}


@pytest.mark.parametrize(("byte", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_changed_byte_is_named(byte: int, message: str) -> None:
    content = bytearray(TWO)
    content[byte] ^= 0xFF
    with pytest.raises(DamagedRecord, match=f"^{message}$") as caught:
        read_all(bytes(content))
    assert str(caught.value) == f"record {caught.value.record} at byte {caught.value.offset}: {caught.value.problem}"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (20, "record 1 at byte 19: file ends inside the record's header"),
        (30, "record 1 at byte 19: file ends inside the record's header"),
        (31, "record 1 at byte 19: file ends 9 bytes before the record does"),
        (39, "record 1 at byte 19: file ends 1 bytes before the record does"),
    ],
)
def test_a_cut_file_is_named(size: int, message: str) -> None:
    with pytest.raises(DamagedRecord, match=f"^{message}$"):
        read_all(TWO[:size])


def test_records_before_the_damage_are_still_read() -> None:
    reader = read_records(io.BytesIO(TWO[:-1]))
    assert next(reader) == (0, b"abc")
    with pytest.raises(DamagedRecord):
        next(reader)


def test_a_length_that_no_example_has_is_refused_before_memory_is_asked_for() -> None:
    # Its checksum holds: not a damaged file, but one made to hurt.
    header = struct.pack("<Q", 2**62)
    content = header + struct.pack("<I", masked_crc(header))
    with pytest.raises(DamagedRecord, match=r"length 4611686018427387904 is more than an example can have"):
        read_all(content)


@thorough
@given(st.lists(st.binary(max_size=64), min_size=1, max_size=6), st.data())
def test_every_flipped_bit_is_found(data: list[bytes], draw: st.DataObject) -> None:
    content = bytearray(b"".join(map(frame, data)))
    bit = draw.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedRecord):
        read_all(bytes(content))


@thorough
@given(st.lists(st.binary(max_size=64), min_size=1, max_size=6), st.data())
def test_every_cut_is_found_unless_it_falls_between_records(data: list[bytes], draw: st.DataObject) -> None:
    content = b"".join(map(frame, data))
    size = draw.draw(st.integers(0, len(content) - 1))
    ends = {0, *np.cumsum([len(record) + 16 for record in data]).tolist()}
    if size in ends:  # nothing in the file can tell; the manifest's count does
        assert len(read_all(content[:size])) < len(data)
    else:
        with pytest.raises(DamagedRecord, match="file ends"):
            read_all(content[:size])


@thorough
@given(st.binary(max_size=200))
def test_garbage_is_damaged_and_nothing_else(content: bytes) -> None:
    if content:
        with pytest.raises(DamagedRecord):
            read_all(content)


def test_index_rows_are_int64_offsets_and_sizes() -> None:
    rows = parse_index(b"0 19\n19 21\n")
    assert rows.dtype == np.int64
    assert rows.tolist() == [[0, 19], [19, 21]]


NOT_LINES = "not one 'offset size' line per record"
BAD_INDEXES = {
    "text": (b"hello\n", NOT_LINES),
    "three numbers": (b"0 19 21\n", NOT_LINES),
    "no newline at the end": (b"0 19", NOT_LINES),
    "columns and lines confused": (b"0\n19 19\n21\n", NOT_LINES),
    "leading zero": (b"0 019\n", NOT_LINES),
    "underscore": (b"0 1_9\n", NOT_LINES),
    "too large for a file": (b"0 99999999999999999999\n", NOT_LINES),
    "not ASCII": ("0 ١٩\n".encode(), NOT_LINES),
    "a gap": (
        b"0 19\n20 21\n",
        "record 1 is listed at byte 20 with 21 bytes; it must begin at byte 19 and have at least 16",
    ),
    "not from the start": (b"5 19\n", "record 0 is listed at byte 5 with 19 bytes; it must begin at byte 0 and"),
    "smaller than its framing": (b"0 15\n", "record 0 is listed at byte 0 with 15 bytes; it must begin at byte 0 and"),
    "negative size": (b"0 19\n19 -3\n", "record 1 is listed at byte 19 with -3 bytes"),
}


@pytest.mark.parametrize(("content", "message"), BAD_INDEXES.values(), ids=BAD_INDEXES)
def test_a_damaged_index_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_index(content)


@thorough
@given(st.one_of(st.binary(max_size=60), st.text("0123456789 \n-", max_size=60).map(str.encode)))
def test_an_index_is_either_canonical_or_refused_with_a_value_error(content: bytes) -> None:
    try:
        rows = parse_index(content)
    except ValueError:
        return
    assert content == b"".join(b"%d %d\n" % (offset, size) for offset, size in rows.tolist())
