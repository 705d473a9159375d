"""TFRecord framing and DALI index files: the bytes of one shard, written and read back with every checksum verified.

A record is `length (8 bytes) | masked crc32c of it (4) | data | masked crc32c of data (4)`, little endian. The index
holds one `offset size` text line per record; size counts the 16 framing bytes.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

FRAMING_BYTES = 16
LONGEST_RECORD = 2**31 - 1  # protobuf's limit for a message; a longer length, though its checksum holds, is not ours
_MASK_DELTA = 0xA282EAD8


class DamagedRecord(Exception):
    """A record that cannot be read back as it was written; carries its position in the shard."""

    def __init__(self, record: int, offset: int, problem: str) -> None:
        """Names the record by number and byte offset."""
        super().__init__(f"record {record} at byte {offset}: {problem}")
        self.record, self.offset, self.problem = record, offset, problem


def masked_crc(data: bytes) -> int:
    """The CRC32C of `data`, masked the way TFRecord stores it."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """One record as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data))))


@dataclass(frozen=True)
class WrittenShard:
    """What a finished shard file weighs."""

    records: int
    bytes: int
    sha256: str
    index_sha256: str


class RecordWriter:
    """Writes framed records to one stream and their index to another, hashing as it goes."""

    def __init__(self, stream: BinaryIO, index: BinaryIO) -> None:
        """Both streams stay the caller's to close."""
        self._stream, self._index = stream, index
        self._hash, self._index_hash = hashlib.sha256(), hashlib.sha256()
        self.records = self.bytes = 0

    def write(self, data: bytes) -> None:
        """Appends one record."""
        framed = frame(data)
        line = b"%d %d\n" % (self.bytes, len(framed))
        self._stream.write(framed)
        self._index.write(line)
        self._hash.update(framed)
        self._index_hash.update(line)
        self.records += 1
        self.bytes += len(framed)

    def finish(self) -> WrittenShard:
        """What has been written so far."""
        return WrittenShard(self.records, self.bytes, self._hash.hexdigest(), self._index_hash.hexdigest())


class Readable(Protocol):
    """What records are read from: an open file, or something that hashes one on the way."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes; fewer only at the end."""


def read_records(stream: Readable) -> Iterator[tuple[int, bytes]]:
    """Yields (offset, data) of every record; raises DamagedRecord at the first that is cut off or fails a checksum."""
    record = offset = 0
    while header := stream.read(12):
        data = _read_body(stream, header, record, offset)
        yield offset, data
        offset += len(data) + FRAMING_BYTES
        record += 1


def read_record(stream: Readable, record: int, offset: int) -> bytes:
    """The data of the record that begins where the stream stands; raises DamagedRecord with this number and offset."""
    return _read_body(stream, stream.read(12), record, offset)


def _read_body(stream: Readable, header: bytes, record: int, offset: int) -> bytes:
    if len(header) < 12:
        raise DamagedRecord(record, offset, "file ends inside the record's header")
    length, length_crc = struct.unpack("<QI", header)
    if masked_crc(header[:8]) != length_crc:
        raise DamagedRecord(record, offset, "length fails its checksum")
    if length > LONGEST_RECORD:
        raise DamagedRecord(record, offset, f"length {length} is more than an example can have")
    data, data_crc = stream.read(length), stream.read(4)  # apart: a slice of both would copy the record
    if len(data_crc) < 4:
        missing = length + 4 - len(data) - len(data_crc)
        raise DamagedRecord(record, offset, f"file ends {missing} bytes before the record does")
    if masked_crc(data) != int.from_bytes(data_crc, "little"):
        raise DamagedRecord(record, offset, "data fails its checksum")
    return data


def read_index(path: Path) -> npt.NDArray[np.int64]:
    """The index as an array of (offset, size) rows; raises ValueError if it is not such a file."""
    return parse_index(path.read_bytes())


def parse_index(content: bytes) -> npt.NDArray[np.int64]:
    """The (offset, size) rows; raises ValueError unless there is one line per record, and they lie end to end."""
    try:
        rows = np.array([int(word) for word in content.split()], dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise ValueError("not one 'offset size' line per record") from error
    if content != b"%d %d\n" * len(rows) % tuple(rows.ravel().tolist()):
        raise ValueError("not one 'offset size' line per record")
    offsets, sizes = rows[:, 0], rows[:, 1]
    begins = np.cumsum(sizes) - sizes
    wrong = np.flatnonzero((offsets != begins) | (sizes < FRAMING_BYTES))
    if len(wrong):
        record = wrong[0]
        raise ValueError(
            f"record {record} is listed at byte {offsets[record]} with {sizes[record]} bytes; "
            f"it must begin at byte {begins[record]} and have at least {FRAMING_BYTES}"
        )
    return rows
