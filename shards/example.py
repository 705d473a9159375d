"""tf.train.Example without TensorFlow: a canonical encoder and a tolerant decoder.

Written by hand because the message is three levels of length-delimited fields: about sixty lines, no protobuf import in workers
and verifiers, and bytes that no protobuf release can reorder. Features are written in name order; floats and ints are packed.
tests/test_example.py holds it against tf.train.Example in both directions.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

Value = bytes | Sequence[bytes] | Sequence[int] | Sequence[float]
# Field numbers of Feature's oneof, and the wire types of protobuf.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def encode_example(features: Mapping[str, Value]) -> bytes:
    """Serialises features; a lone bytes value is a list of one. An empty list keeps its name and has no values."""
    entries = b"".join(_delimited(1, _entry(name, features[name])) for name in sorted(features))
    return _delimited(1, entries)


def _entry(name: str, value: Value) -> bytes:
    return _delimited(1, name.encode()) + _delimited(2, _feature(value))


def _feature(value: Value) -> bytes:
    values = [value] if isinstance(value, bytes) else list(value)
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _delimited(_BYTES_LIST, b"".join(_delimited(1, item) for item in values))  # type: ignore[arg-type]
    if isinstance(values[0], int):
        return _delimited(_INT64_LIST, _delimited(1, b"".join(_varint(item & (2**64 - 1)) for item in values)))  # type: ignore[operator]
    return _delimited(_FLOAT_LIST, _delimited(1, struct.pack(f"<{len(values)}f", *values)))


def _delimited(field: int, payload: bytes) -> bytes:
    return b"".join((_varint(field << 3 | _DELIMITED), _varint(len(payload)), payload))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_example(data: bytes) -> dict[str, list[bytes] | list[int] | list[float]]:
    """Parses a serialised Example; raises ValueError if the bytes are not one."""
    try:
        return dict(_features(data))
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a tf.train.Example: {error}") from error


def _features(data: bytes) -> Iterator[tuple[str, list[bytes] | list[int] | list[float]]]:
    for _, features in _fields(data, wanted=1):
        for _, entry in _fields(features, wanted=1):
            parts = {field: payload for field, payload in _fields(entry) if field in (1, 2)}
            yield parts.get(1, b"").decode(), _values(parts.get(2, b""))


def _values(feature: bytes) -> list[bytes] | list[int] | list[float]:
    for kind, payload in _fields(feature):
        if kind == _BYTES_LIST:
            return [item for _, item in _fields(payload, wanted=1)]
        if kind == _FLOAT_LIST:
            return [x for _, item in _fields(payload, wanted=1) for x in struct.unpack(f"<{len(item) // 4}f", item)]
        if kind == _INT64_LIST:
            return [x for _, item in _fields(payload, wanted=1) for x in _varints(item)]
    return []


def _fields(data: bytes, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yields (field number, payload) of a message; unpacked scalars come as their own bytes."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        field, wire = tag >> 3, tag & 7
        start, position = _extent(data, position, wire)
        if position > len(data):
            raise ValueError("not a tf.train.Example: a field is longer than its message")
        if wanted is None or field == wanted:
            yield field, data[start:position]


def _extent(data: bytes, position: int, wire: int) -> tuple[int, int]:
    if wire == _DELIMITED:
        length, position = _read_varint(data, position)
        return position, position + length
    if wire == _VARINT:
        return position, _read_varint(data, position)[1]
    if wire in (_FIXED32, _FIXED64):
        return position, position + (4 if wire == _FIXED32 else 8)
    raise ValueError(f"not a tf.train.Example: unknown wire type {wire}")


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield int(np.uint64(value).astype(np.int64))


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value & (2**64 - 1), position
        shift += 7
        if shift > 63:
            raise ValueError("not a tf.train.Example: a number is longer than 64 bits")
