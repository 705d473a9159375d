"""A few features of many records, without reading the pictures between them.

A shard is mapped into memory, and only the lengths around its fields and the wanted values are touched: the order of
training is printed, and labels are counted, at a fraction of what reading the records costs. Because a checksum covers
all of a record, what is skipped is not checked; `verify` and training itself do that.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from mmap import ACCESS_READ, MADV_RANDOM, mmap
from pathlib import Path

from shards.errors import ShardsmithError
from shards.example import Values, decode_features
from shards.records import masked_crc

_SPARSE_BYTES = 16384  # records longer than this are worth jumping between; of shorter ones every page is touched


def read_features(path: Path, offsets: Sequence[int], names: Collection[str]) -> Iterator[dict[str, Values]]:
    """Yields what `names` of the record at each offset of a shard hold; a record without a feature has no such key."""
    if not len(offsets):
        return
    try:
        with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            if len(data) > _SPARSE_BYTES * len(offsets):
                data.madvise(MADV_RANDOM)
            for offset in offsets:
                yield _read(data, int(offset), names, path)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise ShardsmithError(f"shard {path} cannot be read: {error}; find the damage with `shards verify`") from error


def _read(data: mmap, offset: int, names: Collection[str], path: Path) -> dict[str, Values]:
    try:
        length, checksum = struct.unpack_from("<QI", data, offset)
        if masked_crc(data[offset : offset + 8]) != checksum:
            raise ValueError("length fails its checksum")
        begin, end = offset + 12, offset + 12 + length
        if end + 4 > len(data):
            raise ValueError("the file ends before the record does")
        return decode_features(data, begin, end, names)
    except (struct.error, ValueError) as error:
        raise ShardsmithError(
            f"shard {path}, record at byte {offset}: {error}; find the damage with `python -m shards verify`"
        ) from error
