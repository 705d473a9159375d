"""Tar and zip archives: WebDataset samples (`0001.jpg`, `0001.cls`, `0001.json`), or class folders in an archive.

Nothing is ever extracted to a path. Uncompressed tars and zips are read in place; compressed tars are spooled.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

from pipelines.config import SPLIT_NAMES, BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.pictures.process import check_size
from pipelines.reasons import Reason, RejectedImage
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.files import NOT_SPOOLED, check_roles, file_name, key_prefix, keys_root, source_files
from pipelines.sources.folders import IMAGE_SUFFIXES, SIDECAR_SUFFIXES, is_input
from pipelines.sources.listings import needed
from pipelines.sources.members import DAMAGE, Member, describe_damage, until_damage
from pipelines.sources.rows import make_key
from pipelines.sources.tars import tar_members
from pipelines.sources.zips import zip_members
from pipelines.values import Fault
from shards.errors import UsageError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ZIP_SUFFIXES = (".zip",)
_NAMES = {
    "tar": re.compile(r"\.(tar(\.gz|\.bz2|\.xz)?|tgz|tbz2|txz)$", re.IGNORECASE),
    "zip": re.compile(r"\.zip$", re.IGNORECASE),
}
_MEMBERS: dict[str, Callable[[str], Iterator[Member]]] = {"tar": tar_members, "zip": zip_members}
JSON, TEXTS, NUMBERS = ("json", "jsn"), ("txt", "text", "transcript"), ("cls", "cls2", "class", "count", "index", "id")
_LARGEST_SIDECAR = 4_000_000
_DEPTHS = {"flat": 0, "class": 1, "split_class": 2}
_COMPRESSED = tuple(suffix for suffix in TAR_SUFFIXES if suffix != ".tar")
_PEEK = 200  # how many members, or samples, tell what an archive is


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses what is no archive, and archives that cannot give what the build needs."""
    first = partition(source, config)[0]
    if first.note == "webdataset":
        peeked = islice(rows(first, source, config, Spool("", None)), _PEEK)
        check_roles((row.values for row in peeked), needed(config, "path")[1:], first.path, source, config)
        return
    if config.labels.kind == "regression" or config.boxes or config.columns:
        what = "boxes" if config.boxes else "columns" if config.columns else "regression targets"
        raise UsageError(f"source.path {first.path} is an archive of {first.note} layout, which has no {what}")
    if source.label_pattern and first.note != "flat":
        raise UsageError(f"source.label_pattern is for layout flat, not for {first.note}")
    if (
        first.note == "flat"
        and config.labels.kind != "none"
        and "label" not in re.compile(source.label_pattern).groupindex
    ):
        raise UsageError(
            "a flat archive needs source.label_pattern, a regular expression with a group called label, "
            "such as (?P<label>[a-z]+)_\\d+; or labels.kind: none"
        )


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """One piece per archive; the first that is not empty tells the layout of all."""
    files = source_files(source, _NAMES[source.kind])
    members = _peek((file.path for file in files), source)
    layout = layout_of([member.name for member in members], source, config)
    spooled = not members[0].in_place
    return [
        Partition(
            0,
            source.kind,
            file.path,
            keys_root(source, file),
            note=layout,
            spooled=spooled or file.path.lower().endswith(_COMPRESSED),
        )
        for file in files
    ]


def _peek(paths: Iterable[str], source: SourceConfig) -> list[Member]:
    """The first members of the first archive that has any."""
    for path in paths:
        members = list(islice(until_damage(_MEMBERS[source.kind](path), path), _PEEK))
        if members and (fault := members[0].fault) and not members[0].name:
            raise UsageError(f"source.path {path} cannot be read as {source.kind}: {fault.message}")
        if members:
            return members
    raise UsageError(f"source.path {source.path} holds no files; the archive is empty")


def layout_of(names: list[str], source: SourceConfig, config: BuildConfig) -> str:
    """The layout asked for; `auto` sees samples by their sidecars, and split folders by what they are called."""
    if source.layout != "auto":
        return source.layout
    if source.label_pattern:
        return "flat"
    parts = [split_name(name) for name in names]
    pictures = {stem for stem, suffix in parts if f".{suffix}" in IMAGE_SUFFIXES}
    if any(stem in pictures and suffix in (*JSON, *TEXTS, *NUMBERS) for stem, suffix in parts):
        return "webdataset"
    if config.labels.kind == "none":
        return "flat"
    tops = {name.partition("/")[0] for name in names if "/" in name}
    return "split_class" if tops and all(top.lower() in SPLIT_NAMES for top in tops) else "class"


def split_name(name: str) -> tuple[str, str]:
    """`a.b/0001.seg.png` as (`a.b/0001`, `seg.png`): a sample's name ends at the first dot behind the folders."""
    folder, slash, last = name.rpartition("/")
    stem, _, suffix = last.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per sample or per file; what cannot be one has a fault, the damage of the archive too."""
    listing = _Listing(part, source, config, spool, key_prefix(part, _NAMES[part.kind]), file_name(part))
    members = until_damage(_MEMBERS[part.kind](part.path), part.path)
    return listing.samples(members) if part.note == "webdataset" else listing.files(members)


@dataclass(frozen=True)
class _Listing:
    """Rows from the members of one archive."""

    part: Partition
    source: SourceConfig
    config: BuildConfig
    spool: Spool
    prefix: str
    archive: str

    def files(self, members: Iterable[Member]) -> Iterator[Row]:
        """A row per file, with labels from folders or from the label pattern."""
        pattern = re.compile(self.source.label_pattern) if self.source.label_pattern else None
        depth = _DEPTHS[self.part.note]
        for member in members:
            loose = member.name.count("/") < depth
            if member.name and not is_input(member.name, loose=loose):
                continue
            if member.fault:
                yield self.row(member, fault=member.fault)
            elif loose and self.config.labels.kind != "none":
                yield self.row(member, fault=Fault(Reason.NO_LABEL, "the file lies in no class folder"))
            else:
                yield self._file(member, pattern)

    def _file(self, member: Member, pattern: re.Pattern[str] | None) -> Row:
        name = make_key(member.name)
        if pattern is None:
            folders = name.split("/")[: _DEPTHS[self.part.note]]
            values = dict(zip(("label", "split"), reversed(folders), strict=False))
        elif found := pattern.search(name):
            values = found.groupdict()
        else:
            fault = Fault(Reason.NO_LABEL, f"source.label_pattern does not match {name!r}")
            return self.row(member, fault=fault)
        return self.row(member, {self.source.fields.get(role, role): value for role, value in values.items()})

    def samples(self, members: Iterable[Member]) -> Iterator[Row]:
        """A row per run of members whose names differ only behind the first dot, and one per member at fault."""
        for stem, group in groupby(members, key=lambda member: split_name(member.name)[0]):
            sample = _Sample(stem)
            for member in group:
                yield from self._take(sample, member)
            yield from self._finish(sample)

    def _take(self, sample: "_Sample", member: Member) -> Iterator[Row]:
        """Puts a member into its sample; what cannot be in one is a row of its own."""
        suffix = split_name(member.name)[1]
        hidden = member.name.rpartition("/")[2].startswith((".", "__"))
        if member.name and (hidden or not suffix or f".{suffix}" in SIDECAR_SUFFIXES - {".json", ".txt"}):
            return
        if member.fault or suffix in sample.suffixes:
            sample.spoilt = True
            twice = Fault(Reason.DUPLICATE_KEY, "the archive has two members of this name; the first is used")
            yield self.row(member, fault=member.fault or twice)
            return
        sample.suffixes.append(suffix)
        if self._is_picture(suffix) and sample.row is None:
            sample.row = self.row(member)
        elif suffix in (*JSON, *TEXTS, *NUMBERS):
            problem = _read_sidecar(member, suffix, sample.values)
            sample.problem = sample.problem or problem

    def _is_picture(self, suffix: str) -> bool:
        wanted = self.source.fields.get("image")
        return suffix == wanted if wanted else f".{suffix}" in IMAGE_SUFFIXES

    def _finish(self, sample: "_Sample") -> Iterator[Row]:
        row = sample.row
        if row and (row.fault or not sample.problem):
            yield row._replace(values=sample.labelled())
        elif row:
            yield row._replace(fault=Fault(Reason.BAD_ROW, sample.problem))
        elif sample.suffixes and not sample.spoilt:
            key = self.prefix + make_key(sample.stem)
            message = f"the sample has no picture, only {', '.join(sample.suffixes)}; its members must stand together"
            yield Row(key, f"{self.archive}: {key}", {}, fault=Fault(Reason.BAD_ROW, message))

    def row(self, member: Member, values: dict[str, Any] | None = None, *, fault: Fault | None = None) -> Row:
        """The row of a member whose bytes are the input; they are spooled unless they can be read where they lie."""
        location = member.location
        if not member.in_place and not self.part.spooled:
            fault = fault or NOT_SPOOLED
        elif not member.in_place and not fault:
            try:
                check_size(location.size, self.config.image)
                location = self.spool.add(member.read(location.size))
            except RejectedImage as reject:
                fault = Fault(reject.reason, reject.message)
            except DAMAGE as error:
                fault = Fault(Reason.UNREADABLE, describe_damage(error))
        key = self._key(member)
        return Row(key, key, values or {}, location, fault)

    def _key(self, member: Member) -> str:
        if not member.name:
            return self.archive
        name = make_key(member.name)
        # A name that leads out of the archive may be that of a good member elsewhere; it must not take its key.
        outside = name.startswith("/") or ".." in name.split("/")
        return f"{self.archive}: {name}" if outside else self.prefix + name


@dataclass
class _Sample:
    """What has been seen of a sample."""

    stem: str
    row: Row | None = None
    values: dict[str, Any] = field(default_factory=dict)
    suffixes: list[str] = field(default_factory=list)
    problem: str = ""
    spoilt: bool = False  # a member of it is a reject already

    def labelled(self) -> dict[str, Any]:
        """The values, with the class as the label unless there is one."""
        return {"label": self.values["cls"]} | self.values if "cls" in self.values else self.values


def _read_sidecar(member: Member, suffix: str, values: dict[str, Any]) -> str:
    """Adds what a sidecar says to the values; returns what is wrong with it."""
    name = make_key(member.name)
    try:
        data = member.read(_LARGEST_SIDECAR)
        if len(data) > _LARGEST_SIDECAR:
            return f"{name} has more than {_LARGEST_SIDECAR / 1e6:g} MB"
        text = data.decode("utf-8-sig")
        parsed = json.loads(text) if suffix in JSON else text
    except UnicodeDecodeError:
        return f"{name} is not UTF-8 text"
    except (ValueError, RecursionError) as error:
        return f"{name} is not JSON: {error}"
    except DAMAGE as error:
        return f"{name}: {describe_damage(error)}"
    if isinstance(parsed, dict):
        values.update((key, value) for key, value in parsed.items() if key not in values)
    else:
        values[suffix] = _number_or_text(parsed.strip()) if suffix in NUMBERS else parsed
    return ""


def _number_or_text(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


KIND = Kind(check, partition, rows)
