"""The vocabulary of a build: what flows from listing to commit, and nothing of it holds pixels.

Neither Beam nor a decoder is imported here: the decoder processes speak this vocabulary too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shards.records import WrittenShard

Scalar = int | float | str
Cell = Scalar | tuple[Scalar, ...]
Box = tuple[float, float, float, float]  # left, top, right, bottom, in the unit that the config states
RECORD = "record"


class Fault(NamedTuple):
    """Why an input is known to be unusable before it is opened: a code of `reasons.Reason` and a message."""

    reason: str
    message: str


class Location(NamedTuple):
    """Where the bytes of an input lie: a whole file, or `size` bytes of it from `offset` on.

    `coding` says what stands between these bytes and the input ("" nothing, "deflate" a raw deflate stream, "record"
    see `InputRef.is_carried`); `form` says what the input is: "" a picture file, else an array such as `|u1:28,28`
    (NumPy's type, then the shape). An array of one dimension is a row of features.
    """

    path: str
    size: int
    offset: int = -1  # -1: the whole file
    modified: int = 0  # of a local file, in nanoseconds; 0: not known
    coding: str = ""
    form: str = ""
    content: int = 0  # of a spooled copy: a hash of the bytes, by which they are known again; of a carried: its digest
    unpacked: int = 0  # how many bytes the coding is said to hold; 0: there is none

    @property
    def is_whole_file(self) -> bool:
        """Whether the input is a file of its own."""
        return self.offset < 0


class Before(NamedTuple):
    """What the dataset that is being taken further knows of an input: its shard, and what became of it there.

    `same` tells that the input has not changed, and `again` that it is to be tried once more though it has not; `gone`,
    that it is no longer there: such a ref stands for what was. One that was `added` is new, but belongs into the shard
    of another of its key; one `uprooted` needs another shard.
    """

    split: str
    shard: int  # its index
    identity: int  # that it had then
    same: bool = True
    gone: bool = False
    reason: str = ""  # why it is no record; "": it is one
    content: int = 0
    look: bytes = b""
    source: str = ""  # its name in the accounts
    added: bool = False
    again: bool = False
    uprooted: bool = False


class InputRef(NamedTuple):
    """One input, by reference. A ref with a fault flows like any other, so that it is counted, and ends as a reject.

    The fields up to the fault are what the source says; those after it are found out on the way.
    """

    key: str
    location: Location
    labels: tuple[str, ...] = ()  # one name, several, or none
    target: tuple[float, ...] = ()
    split: str = ""  # "" = not given by the source
    group: str = ""
    columns: tuple[Cell, ...] = ()
    boxes: tuple[Box, ...] = ()
    source: int = 0  # which of the config's sources
    fault: Fault | None = None
    before: Before | None = None
    content: int = 0  # a digest of the input's bytes; 0: not known
    look: bytes = b""  # a hash of what the picture looks like; empty: none
    unit: str = ""  # inputs of one unit belong on the same side of every split; "": its group, or it alone
    dealt: str = ""  # the split that it goes to; "": not dealt yet

    @property
    def is_carried(self) -> bool:
        """Whether no source is asked for it: what became of it before is taken over.

        Its location is then a shard of the version before, and the offset its place among the shard's inputs.
        """
        return self.location.coding == RECORD


@dataclass(frozen=True)
class Content:
    """What the records of a build hold: pictures, or rows of `row_length` features."""

    row_length: int = 0

    @property
    def is_images(self) -> bool:
        """Whether the records hold pictures."""
        return self.row_length == 0


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
    """An input that did not become an example, and why; `bytes` and `sha256` of what was read, if anything was."""

    key: str
    source: str
    location: str
    reason: str
    message: str
    bytes: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class Account:
    """What became of the inputs of one source in one shard, split or dataset."""

    listed: int = 0
    written: int = 0
    rejected: int = 0
    duplicates: int = 0

    def __add__(self, other: "Account") -> "Account":
        """Both together."""
        return Account(
            self.listed + other.listed,
            self.written + other.written,
            self.rejected + other.rejected,
            self.duplicates + other.duplicates,
        )


@dataclass(frozen=True)
class Receipt:
    """What a finished shard says of itself: enough to commit without opening it again."""

    split: str
    index: int
    listed: int
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
    duplicates: int = 0
    boxes_kept: int = 0
    boxes_dropped: int = 0
    kept_truncated: int = 0
    hashes: tuple[int, int] = (0, 0)  # the first and the last of its inputs in the order of their keys' hashes
    label_ids: Mapping[str, int] = field(default_factory=dict)  # of its labels
    sources: Mapping[str, Account] = field(default_factory=dict)

    @property
    def shard(self) -> PlannedShard:
        """The shard's names."""
        return PlannedShard(number=-1, split=self.split, index=self.index)

    @property
    def written(self) -> WrittenShard:
        """What its files weigh."""
        return WrittenShard(self.records, self.bytes, self.sha256, self.index_sha256)


@dataclass(frozen=True)
class Changes:
    """How the inputs of a dataset differ from those of the version before."""

    added: int = 0
    removed: int = 0
    changed: int = 0
