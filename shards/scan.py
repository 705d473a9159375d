"""Reads records that are written as a build writes them, at a fraction of what decoding them costs.

Such a record has the manifest's features in name order. Most of its entries were seen before, for a hundred classes
have a hundred labels, and are decoded once. A lone bytes value, such as a picture, is not looked at: that it is one
shows in the lengths around it.
"""

import struct
from collections.abc import Callable, Collection, Iterable

from shards.example import Values, read_entry, read_varint
from shards.manifest import FeatureEntry

Check = Callable[[FeatureEntry, Values], None]  # raises ValueError if the values are not what the manifest promises

# Protobuf's tags of what a lone bytes value is wrapped in.
_FEATURES = _ENTRY = _NAME = _BYTES_LIST = _VALUE = 0x0A
_FEATURE = 0x12
_MOST_ENTRIES, _LONGEST_ENTRY = 20_000, 200  # remembered of each feature: a few MB


class Scanner:
    """Gives the values of records that are written as a build writes them."""

    def __init__(self, features: Iterable[FeatureEntry], check: Check, *, wanted: Collection[str]) -> None:
        """Lone bytes values are left out unless `wanted`; all other values are held against `check`."""
        in_order = sorted(features, key=lambda feature: feature.name)
        self._pieces = [_Blob(f) if _is_blob(f) and f.name not in wanted else _Entries(f, check) for f in in_order]

    def scan(self, record: bytes) -> dict[str, Values] | None:
        """The values by name, all as promised; None if the record is written in another way or breaks a promise."""
        example: dict[str, Values] = {}
        try:
            position, end = _extent(record, 0, _FEATURES)
            for piece in self._pieces:
                start, position = _extent(record, position, _ENTRY)
                piece.read(record, start, position, example)
        except (IndexError, ValueError, struct.error):
            return None
        return example if position == end == len(record) else None


class _Blob:
    """The entry of a lone bytes value."""

    def __init__(self, feature: FeatureEntry) -> None:
        name = feature.name.encode()
        self._name = bytes((_NAME, len(name))) + name

    def read(self, record: bytes, start: int, end: int, _: dict[str, Values]) -> None:
        """Raises ValueError unless start..end is one bytes value with the feature's name."""
        if not record.startswith(self._name, start):
            raise ValueError("another feature")
        start += len(self._name)
        for tag in (_FEATURE, _BYTES_LIST, _VALUE):
            start, stop = _extent(record, start, tag)
            if stop != end:
                raise ValueError("another length")


class _Entries:
    """The entries of one feature, those that were seen before and others."""

    def __init__(self, feature: FeatureEntry, check: Check) -> None:
        self._feature, self._check = feature, check
        self._seen: dict[bytes, Values] = {}

    def read(self, record: bytes, start: int, end: int, example: dict[str, Values]) -> None:
        """Adds the values to the example; raises ValueError if they are of another feature or not as promised."""
        entry = record[start:end]
        values = self._seen.get(entry)
        if values is None:
            values = self._decode(entry)
        example[self._feature.name] = values

    def _decode(self, entry: bytes) -> Values:
        name, values = read_entry(entry, 0, len(entry))
        if name != self._feature.name:
            raise ValueError("another feature")
        self._check(self._feature, values)
        if len(entry) <= _LONGEST_ENTRY and len(self._seen) < _MOST_ENTRIES:
            self._seen[entry] = values
        return values


def _is_blob(feature: FeatureEntry) -> bool:
    return feature.type == "bytes" and feature.length == 1 and len(feature.name.encode()) < 0x80


def _extent(record: bytes, position: int, tag: int) -> tuple[int, int]:
    """Where the content of the field at a position begins and ends; raises ValueError if it has another tag."""
    if record[position] != tag:
        raise ValueError("another tag")
    length, start = record[position + 1], position + 2
    if length >= 0x80:
        length, start = read_varint(record, position + 1, longest=5)
    return start, start + length
