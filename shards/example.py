"""tf.train.Example without TensorFlow: a canonical encoder, and a decoder that agrees with TensorFlow or refuses.

Written by hand because the message is three levels of length-delimited fields: about a hundred lines, no protobuf
import in workers and verifiers, and bytes that no protobuf release can reorder. Features are written in name order;
floats and ints are packed. tests/test_example.py holds it against tf.train.Example in both directions.
"""

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from mmap import mmap
from numbers import Integral
from operator import index

Value = bytes | Sequence[bytes] | Sequence[int] | Sequence[float]
Values = list[bytes] | list[int] | list[float]
Buffer = bytes | mmap
# Protobuf's wire types, and the tags (field number, wire type) that occur in an Example.
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIRST, _SECOND, _THIRD = (number << 3 | _DELIMITED for number in (1, 2, 3))
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = _FIRST, _SECOND, _THIRD
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_PACKED, _LONE_FLOAT, _LONE_INT64 = _FIRST, 1 << 3 | _FIXED32, 1 << 3 | _VARINT


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Serialises features; a lone bytes value is a list of one. An empty list keeps its name and has no values."""
    return _delimited(_FIRST, b"".join(_delimited(_FIRST, _entry(name, features[name])) for name in sorted(features)))


def _entry(name: str, value: Value) -> bytes:
    try:
        return _delimited(_FIRST, name.encode()) + _delimited(_SECOND, _feature(value))
    except OverflowError as error:
        raise ValueError(f"feature {name!r} does not fit in its type: {error}") from error


def _feature(value: Value) -> bytes:
    values = [value] if isinstance(value, bytes) else list(value)
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _delimited(_BYTES_LIST, b"".join(_delimited(_FIRST, item) for item in values))  # type: ignore[arg-type]
    if isinstance(values[0], Integral):
        return _delimited(_INT64_LIST, _delimited(_PACKED, b"".join(_int64(index(item)) for item in values)))  # type: ignore[arg-type]
    return _delimited(_FLOAT_LIST, _delimited(_PACKED, struct.pack(f"<{len(values)}f", *values)))


def _delimited(tag: int, payload: bytes) -> bytes:
    return b"".join((_varint(tag), _varint(len(payload)), payload))


def _int64(value: int) -> bytes:
    # A negative number is written as its 64-bit pattern; to_bytes refuses a number that has none.
    return _varint(int.from_bytes(value.to_bytes(8, "little", signed=True), "little"))


def _varint(value: int) -> bytes:
    if value < 0x80:  # nearly every tag, length and number
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_example(data: bytes) -> dict[str, Values]:
    """Parses a serialised Example; raises ValueError if the bytes are not one, or one that no writer makes.

    What is accepted means the same to TensorFlow. Refused beside garbage: groups, which protobuf abandoned, and
    features in several pieces or with strange ones, which it would merge or drop.
    """
    return decode_features(data, 0, len(data))


def decode_features(data: Buffer, start: int, end: int, names: Collection[str] | None = None) -> dict[str, Values]:
    """The features of the Example at start..end; those not called for by `names` are stepped over, not looked at."""
    example: dict[str, Values] = {}
    try:
        for features in _first(data, start, end):
            for entry in _first(data, *features):
                name, feature = _split_entry(data, *entry)
                if names is None or name in names:
                    example[name] = _read_feature(data, name, *feature)
    except (IndexError, struct.error, ValueError) as error:
        raise ValueError(f"not a tf.train.Example: {error}") from error
    return example


def read_entry(data: bytes, start: int, end: int) -> tuple[str, Values]:
    """The name and the values of the feature at start..end; raises ValueError, IndexError or struct.error."""
    name, feature = _split_entry(data, start, end)
    return name, _read_feature(data, name, *feature)


def _split_entry(data: Buffer, start: int, end: int) -> tuple[str, tuple[int, int]]:
    """The name of the feature at start..end, and where what it holds lies."""
    fields = _fields(data, start, end)
    parts = {tag: (first, last) for tag, first, last in fields}
    if len(parts) != len(fields) or not parts.keys() <= {_FIRST, _SECOND}:
        raise ValueError("an entry is not a name and a feature")
    first, last = parts.get(_FIRST, (0, 0))
    return data[first:last].decode(), parts.get(_SECOND, (0, 0))


def _read_feature(data: Buffer, name: str, start: int, end: int) -> Values:
    kinds = _BYTES_LIST, _FLOAT_LIST, _INT64_LIST
    lists = [field for field in _fields(data, start, end) if field[0] in kinds]
    if len(lists) > 1:
        raise ValueError(f"feature {name!r} has several lists")
    return _values(data, *lists[0]) if lists else []


def _values(data: Buffer, kind: int, start: int, end: int) -> Values:
    if kind == _BYTES_LIST:
        return [data[a:b] for a, b in _first(data, start, end)]
    if kind == _FLOAT_LIST:
        pieces = [data[a:b] for tag, a, b in _fields(data, start, end) if tag in (_PACKED, _LONE_FLOAT)]
        return [value for piece in pieces for value in struct.unpack(f"<{len(piece) // 4}f", piece)]
    extents = [(a, b) for tag, a, b in _fields(data, start, end) if tag in (_PACKED, _LONE_INT64)]
    return [value for a, b in extents for value in _int64s(data, a, b)]


def _int64s(data: Buffer, position: int, end: int) -> Iterator[int]:
    while position < end:
        value, position = read_varint(data, position, longest=10)
        yield value - (value >> 63 << 64)  # the upper half of the 64-bit patterns are the negative numbers
    if position > end:
        raise ValueError("a number is longer than its list")


def _first(data: Buffer, start: int, end: int) -> list[tuple[int, int]]:
    """The extents of a message's fields of number 1 that are length-delimited."""
    return [(a, b) for tag, a, b in _fields(data, start, end) if tag == _FIRST]


def _fields(data: Buffer, position: int, end: int) -> list[tuple[int, int, int]]:
    """The (tag, start, end) of every field in a message that lies at position..end of the data.

    This is where verifying a dataset spends its time: positions instead of slices, and no calls for short numbers.
    """
    fields = []
    while position < end:
        tag, position = data[position], position + 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1, longest=5)
        if not 1 << 3 <= tag < 1 << 32:
            raise ValueError(f"no field can have number {tag >> 3}")
        if tag & 7 == _DELIMITED:
            length, start = data[position], position + 1
            if length >= 0x80:
                length, start = read_varint(data, position, longest=5)
            position = start + length
        else:
            start, position = position, _scalar_end(data, position, tag & 7)
        if position > end:
            raise ValueError("a field is longer than its message")
        fields.append((tag, start, position))
    return fields


def _scalar_end(data: Buffer, position: int, wire: int) -> int:
    if wire == _VARINT:
        return read_varint(data, position, longest=10)[1]
    if wire in (_FIXED32, _FIXED64):
        return position + (4 if wire == _FIXED32 else 8)
    raise ValueError(f"unknown wire type {wire}")


def read_varint(data: Buffer, position: int, *, longest: int) -> tuple[int, int]:
    """The number at a position and the position behind it; raises ValueError or IndexError if there is none."""
    value = 0
    for shift in range(0, 7 * longest, 7):
        byte, position = data[position], position + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
    raise ValueError(f"a number is longer than {longest} bytes")
