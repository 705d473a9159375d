"""What every kind of source speaks: partitions of work, rows in the source's own words, and three functions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.values import Fault, Location


class Partition(NamedTuple):
    """A piece of a source that one worker lists: a class folder, one file of many, a range of rows.

    `spooled` partitions cannot be read in place: their payloads are copied to a seekable file while they are listed.
    """

    source: int  # which of the config's sources
    kind: str
    path: str
    root: str  # what keys are relative to
    folder: str = ""  # what paths in rows are relative to, if not to the root
    split: str = ""
    label: str = ""
    note: str = ""  # whatever else the kind wants to tell its own `rows`
    first: int = 0
    end: int = -1  # rows from `first` up to this one; -1: all
    spooled: bool = False
    number: int = 0  # unique in the build; names the spool file


class Row(NamedTuple):
    """One input in the source's own words; `rows.RowReader` makes a ref of it.

    `place` is where a person finds it, `key` what it is called unless the values hold an id. Without a location, the
    values hold a path.
    """

    place: str
    key: str
    values: Mapping[str, Any]
    location: Location | None = None
    fault: Fault | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of source: `check` refuses before work starts, `partition` cuts into pieces, `rows` lists a piece."""

    check: Callable[[SourceConfig, BuildConfig], None]
    partition: Callable[[SourceConfig, BuildConfig], list[Partition]]
    rows: Callable[[Partition, SourceConfig, BuildConfig, Spool], Iterator[Row]]
