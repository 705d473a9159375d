"""What the sources are now, as one number: who finds the same number again finds the same inputs.

The number is a sum, so that it does not matter in which order, or by how many workers, inputs are listed.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from pipelines.config import BuildConfig
from pipelines.sources import list_partition, partition_sources, stamp
from pipelines.sources.base import Partition
from pipelines.values import InputRef
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.seen import Identities
from shards.files import write_atomically

_MODULUS = 1 << 64


class PartitionDigest:
    """Adds up the identities of a partition's inputs.

    For a spooled one it is the identity of its file: its inputs could only be known by reading them all. A function
    is known by its name and arguments alone.
    """

    def __init__(self, part: Partition, config: BuildConfig) -> None:
        """Nothing listed yet."""
        self._identities = None if part.spooled else Identities(config)
        self.value = stamp(part, config) if part.spooled else 0

    def add(self, ref: InputRef) -> None:
        """Counts one input."""
        if self._identities:
            self.value = (self.value + self._identities.of(ref)) % _MODULUS


def scan_sources(config: BuildConfig) -> int:
    """The number of the sources as they are now, from metadata alone."""
    total = 0
    for part in partition_sources(config):
        digest = PartitionDigest(part, config)
        if not part.spooled:
            for ref in list_partition(part, config):
                digest.add(ref)
        total += digest.value
    return total % _MODULUS


def save_scan(folder: BuildFolder) -> None:
    """Stores the number that the job's workers have found."""
    listed = [path.read_text().split() for path in (folder.work / "listing").iterdir()]
    store_scan(sum(int(digest) for _, digest in listed) % _MODULUS, folder)


def store_scan(number: int, folder: BuildFolder) -> None:
    """Stores the number of the sources."""
    write_atomically(folder.sources, json.dumps({"digest": number}).encode())


def sum_identities(columns: Iterable[pa.ChunkedArray]) -> int:
    """What the number is for inputs of these identities, none of which is spooled."""
    return sum(sum(column.to_pylist()) for column in columns) % _MODULUS


def load_scan(folder: BuildFolder) -> int | None:
    """The stored number, if there is one."""
    if not folder.sources.exists():
        return None
    return int(json.loads(Path(folder.sources).read_text())["digest"])
