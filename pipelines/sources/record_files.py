"""The records of TFRecord files, good and bad: unlike `shards.records`, which verifies, this goes on behind damage."""

import gzip
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, NamedTuple

from pipelines.inputs.storage import open_binary
from pipelines.reasons import Reason
from pipelines.sources.members import DAMAGE
from pipelines.values import Fault
from shards.example import Values, decode_example
from shards.records import FRAMING_BYTES, LONGEST_RECORD, masked_crc

_HEADER_BYTES, _CRC_BYTES = 12, 4
_CHUNK = 1_000_000


class Record(NamedTuple):
    """One record: its data, where they begin (in the file, once decompressed), or why there are none."""

    number: int
    offset: int
    data: bytes = b""
    fault: Fault | None = None

    def example(self) -> dict[str, Values] | Fault:
        """The features, or why there are none; the message names the record."""
        if self.fault:
            return self.fault_of(*self.fault)
        try:
            return decode_example(self.data)
        except ValueError:
            return self.fault_of(Reason.BAD_ROW, f"its {len(self.data)} bytes are not a tf.train.Example")

    def fault_of(self, reason: str, message: str) -> Fault:
        """What is wrong with this record."""
        return Fault(reason, f"record {self.number}: {message}")


def is_gzip(path: str) -> bool:
    """Whether a file is compressed, whatever its name; one that cannot be opened is not."""
    try:
        with open_binary(path) as stream:
            return stream.read(2) == b"\x1f\x8b"
    except OSError:
        return False


def read_file(path: str, *, limit: int) -> Iterator[Record]:
    """The records of a file, compressed or not; those of more than `limit` bytes are skipped, with a fault."""
    number = -1
    with ExitStack() as stack:
        try:
            compressed = is_gzip(path)
            stream: Any = stack.enter_context(open_binary(path))
            if compressed:
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            for record in read_records(stream, limit=limit):
                number = record.number
                yield record
        except DAMAGE as error:
            problem = f"the file is damaged or cut off: {getattr(error, 'strerror', None) or error}"
            yield Record(number + 1, 0, fault=Fault(Reason.UNREADABLE, problem))


def read_records(stream: BinaryIO, *, limit: int) -> Iterator[Record]:
    """Every record up to the end, or up to where the next one cannot be found."""
    number = offset = 0
    while header := stream.read(_HEADER_BYTES):
        length = _length(header)
        if isinstance(length, Fault):
            yield Record(number, offset, fault=length)
            return
        yield _record(stream, number, offset + _HEADER_BYTES, length, limit=limit)
        number, offset = number + 1, offset + length + FRAMING_BYTES


def _length(header: bytes) -> int | Fault:
    if len(header) < _HEADER_BYTES:
        return Fault(Reason.UNREADABLE, "the file ends inside the record's header")
    length, crc = struct.unpack("<QI", header)
    if masked_crc(header[:8]) != crc or length > LONGEST_RECORD:
        return Fault(Reason.UNREADABLE, "its length fails its checksum, so nothing from here on can be read")
    return int(length)


def _record(stream: BinaryIO, number: int, offset: int, length: int, *, limit: int) -> Record:
    if length > limit:
        missing = _skip(stream, length + _CRC_BYTES)
        fault = Fault(Reason.FILE_TOO_LARGE, f"it has {length / 1e6:.1f} MB, which image.max_file_mb does not allow")
        return Record(number, offset, fault=_cut(missing) if missing else fault)
    body = stream.read(length + _CRC_BYTES)
    if missing := length + _CRC_BYTES - len(body):
        return Record(number, offset, fault=_cut(missing))
    data = body[:length]
    if masked_crc(data) != struct.unpack("<I", body[length:])[0]:
        return Record(number, offset, fault=Fault(Reason.UNREADABLE, "its data fail their checksum"))
    return Record(number, offset, data)


def _cut(missing: int) -> Fault:
    return Fault(Reason.UNREADABLE, f"the file ends {missing} bytes before the record does")


def _skip(stream: BinaryIO, count: int) -> int:
    """Reads over so many bytes; returns how many were not there."""
    while count > 0 and (data := stream.read(min(count, _CHUNK))):
        count -= len(data)
    return count
