"""tf.train.Example without TensorFlow: a canonical encoder, and a decoder that agrees with TensorFlow or refuses.

Written by hand because the message is three levels of length-delimited fields: about sixty lines, no protobuf import in
workers and verifiers, and bytes that no protobuf release can reorder. Features are written in name order; floats and
ints are packed. tests/test_example.py holds it against tf.train.Example in both directions.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from operator import index

Value = bytes | Sequence[bytes] | Sequence[int] | Sequence[float]
Values = list[bytes] | list[int] | list[float]
# Field numbers of Feature's oneof, and the wire types of protobuf.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Serialises features; a lone bytes value is a list of one. An empty list keeps its name and has no values."""
    entries = b"".join(_delimited(1, _entry(name, features[name])) for name in sorted(features))
    return _delimited(1, entries)


def _entry(name: str, value: Value) -> bytes:
    try:
        return _delimited(1, name.encode()) + _delimited(2, _feature(value))
    except OverflowError as error:
        raise ValueError(f"feature {name!r} does not fit in its type: {error}") from error


def _feature(value: Value) -> bytes:
    values = [value] if isinstance(value, bytes) else list(value)
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _delimited(_BYTES_LIST, b"".join(_delimited(1, item) for item in values))  # type: ignore[arg-type]
    if isinstance(values[0], Integral):
        return _delimited(_INT64_LIST, _delimited(1, b"".join(_int64(index(item)) for item in values)))  # type: ignore[arg-type]
    return _delimited(_FLOAT_LIST, _delimited(1, struct.pack(f"<{len(values)}f", *values)))


def _delimited(number: int, payload: bytes) -> bytes:
    return b"".join((_varint(number << 3 | _DELIMITED), _varint(len(payload)), payload))


def _int64(value: int) -> bytes:
    # Negative numbers are written as the 64-bit pattern they have; to_bytes refuses what has none.
    return _varint(int.from_bytes(value.to_bytes(8, "little", signed=True), "little"))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_example(data: bytes) -> dict[str, Values]:
    """Parses a serialised Example; raises ValueError if the bytes are not one, or one that no writer makes.

    Everything that is accepted means the same to TensorFlow. Refused beside garbage: groups, which protobuf abandoned,
    and a value that is given twice, which it would merge.
    """
    try:
        return {
            str(_only(entry, 1), "utf-8"): _values(_only(entry, 2))
            for features in _messages(memoryview(data), 1)
            for entry in _messages(features, 1)
        }
    except (IndexError, struct.error, ValueError) as error:
        raise ValueError(f"not a tf.train.Example: {error}") from error


def _only(message: memoryview, number: int) -> memoryview:
    """The payload of a field that occurs at most once; empty, which is the default, if it is absent."""
    payloads = list(_messages(message, number))
    if len(payloads) > 1:
        raise ValueError("a field is given twice")
    return payloads[0] if payloads else message[:0]


def _values(feature: memoryview) -> Values:
    lists = [(kind, payload) for kind in (1, 2, 3) for payload in _messages(feature, kind)]
    if len(lists) > 1:
        raise ValueError("a feature has two lists of values")
    for kind, payload in lists:
        if kind == _BYTES_LIST:
            return [bytes(item) for item in _messages(payload, 1)]
        if kind == _FLOAT_LIST:
            return [x for item in _numbers(payload, _FIXED32) for x in struct.unpack(f"<{len(item) // 4}f", item)]
        return [x for item in _numbers(payload, _VARINT) for x in _int64s(item)]
    return []


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    """The payloads of a length-delimited field; fields of other numbers are skipped."""
    for found, wire, payload in _fields(message):
        if found == number:
            if wire != _DELIMITED:
                raise ValueError(f"field {number} has wire type {wire}")
            yield payload


def _numbers(message: memoryview, scalar: int) -> Iterator[memoryview]:
    """The payloads of a list of numbers, which come many to a packed field or one by one."""
    for number, wire, payload in _fields(message):
        if number == 1:
            if wire not in (_DELIMITED, scalar):
                raise ValueError(f"a number has wire type {wire}")
            yield payload


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yields (field number, wire type, payload)."""
    end = 0
    while end < len(message):
        tag, start = _read_varint(message, end, longest=5)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 2**29:
            raise ValueError(f"no field can have number {number}")
        start, end = _extent(message, start, wire)
        if end > len(message):
            raise ValueError("a field is longer than its message")
        yield number, wire, message[start:end]


def _extent(message: memoryview, position: int, wire: int) -> tuple[int, int]:
    if wire == _DELIMITED:
        length, position = _read_varint(message, position, longest=5)
        return position, position + length
    if wire == _VARINT:
        return position, _read_varint(message, position)[1]
    if wire in (_FIXED32, _FIXED64):
        return position, position + (4 if wire == _FIXED32 else 8)
    raise ValueError(f"unknown wire type {wire}")


def _int64s(data: memoryview) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value - (value >> 63 << 64)  # the upper half of the 64-bit patterns are the negative numbers


def _read_varint(data: memoryview, position: int, *, longest: int = 10) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * longest, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
    raise ValueError(f"a number is longer than {longest} bytes")
