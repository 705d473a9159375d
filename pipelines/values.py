"""The vocabulary of a build: what flows from listing to commit, and nothing of it holds pixels."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam

Scalar = int | float | str


class Fault(NamedTuple):
    """Why an input is known to be unusable before it is opened: a code of `reasons.Reason` and a message."""

    reason: str
    message: str


class ImageRef(NamedTuple):
    """One input, by reference. A ref with a fault flows like any other, so that it is counted, and ends as a reject."""

    key: str
    label: str
    location: str
    size: int
    split: str = ""  # "" = not given by the source
    group: str = ""
    columns: tuple[Scalar, ...] = ()
    fault: Fault | None = None


class ImageRefCoder(beam.coders.Coder):
    """Encodes a ref as a bare tuple: a fifth of what pickling the class with its name costs in the shuffle."""

    def encode(self, value: ImageRef) -> bytes:
        """The ref's fields as bytes."""
        return pickle.dumps((*value[:-1], value.fault and tuple(value.fault)), protocol=5)

    def decode(self, encoded: bytes) -> ImageRef:
        """The ref again."""
        ref = ImageRef(*pickle.loads(encoded))
        return ref._replace(fault=Fault(*ref.fault)) if ref.fault else ref

    def is_deterministic(self) -> bool:
        """Refs are never keys."""
        return False


beam.coders.registry.register_coder(ImageRef, ImageRefCoder)


@dataclass(frozen=True)
class PlannedShard:
    """One shard to write: `number` is its identity in the build, `name` its path without suffix."""

    number: int
    split: str
    index: int

    @property
    def name(self) -> str:
        """`train/train-00000`; it carries no total, so that appending never renames a file."""
        return f"{self.split}/{self.split}-{self.index:05d}"

    @property
    def slug(self) -> str:
        """The name as a single path component."""
        return f"{self.split}-{self.index:05d}"


@dataclass(frozen=True)
class Reject:
    """An input that did not become an example, and why."""

    key: str
    source: str
    reason: str
    message: str
    sha256: str = ""


@dataclass(frozen=True)
class Receipt:
    """What a finished shard says of itself: enough to commit without opening it again."""

    split: str
    index: int
    read: int
    records: int
    bytes: int
    sha256: str
    index_sha256: str
    inputs: str
    labels: Mapping[str, int]
    rejected: Mapping[str, int]
    formats: Mapping[str, int]
    smallest: tuple[int, int]
    largest: tuple[int, int]

    @property
    def shard(self) -> PlannedShard:
        """The shard's names."""
        return PlannedShard(number=-1, split=self.split, index=self.index)
