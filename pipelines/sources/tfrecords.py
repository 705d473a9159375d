"""TFRecord files of tf.train.Example: every record a row, its picture or features read where they lie in the file.

Only compressed files are spooled, and features that the file does not hold as one piece.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import FileStat, exists, open_binary
from pipelines.pictures.forms import array_form
from pipelines.pictures.process import check_size
from pipelines.reasons import Reason, RejectedImage
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.cells import shown
from pipelines.sources.files import NOT_SPOOLED, check_roles, file_name, key_prefix, keys_root, source_files
from pipelines.sources.listings import needed
from pipelines.sources.record_files import Record, is_gzip, read_file
from pipelines.sources.rows import USUAL_FIELDS, RowReader
from pipelines.values import Fault, Location
from shards.errors import ShardsmithError, UsageError
from shards.example import Values
from shards.manifest import MANIFEST, FileEntry, parse_manifest

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
NAMES = re.compile(r"\.tfrecords?(-\d+-of-\d+)?(\.gz)?$", re.IGNORECASE)
_PEEK = 100  # how many records tell what a file holds
_BESIDE_BYTES = 1_000_000  # what a record may hold beside its picture
# What our own records call the label in words, and what makes them unique.
_OWN_LABEL, _OWN_KEY = "label_name", "key"
# Where TensorFlow's detection datasets keep the sides of boxes, each side in a feature of its own.
_DETECTION_BOXES = "image/object/bbox"
_SIDES = {"xyxy": ("xmin", "ymin", "xmax", "ymax"), "yxyx": ("ymin", "xmin", "ymax", "xmax")}


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses what is no TFRecord file, and examples without the features that the build needs."""
    first = partition(source, config)[0]
    features = Features(source, config)
    examples = (record.example() for record in islice(_records(first.path, config), _PEEK))
    known = (dict.fromkeys(each) | features.values(each) for each in examples if not isinstance(each, Fault))
    check_roles(known, needed(config, "path")[1:], first.path, source, config)


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """One piece per file; the first that is not empty tells what the examples hold and whether all are compressed."""
    files = drop_ended(source_files(source, NAMES))
    first = next((file.path for file in files if file.size), files[0].path)
    payload = find_payload(first, source, config)
    spooled = payload == "features" or is_gzip(first)
    return [
        Partition(
            0,
            source.kind,
            file.path,
            keys_root(source, file),
            note=payload,
            spooled=spooled or file.path.lower().endswith(".gz"),
        )
        for file in files
    ]


def drop_ended(files: list[FileStat]) -> list[FileStat]:
    """The files without shards of our own that ended with an earlier version and only wait for their last readers."""
    roots = {os.path.dirname(os.path.dirname(file.path)) for file in files}
    ended = {os.path.join(root, entry.path) for root in roots for entry in _retired(os.path.join(root, MANIFEST))}
    return [file for file in files if file.path not in ended]


def _retired(manifest: str) -> Sequence[FileEntry]:
    if not exists(manifest):
        return ()
    try:
        with open_binary(manifest) as stream:
            return parse_manifest(stream.read().decode(), place=manifest).retired
    except (OSError, ValueError, ShardsmithError):
        return ()  # the manifest of something else, or one that `verify` complains of


def find_payload(path: str, source: SourceConfig, config: BuildConfig) -> str:
    """Whether the examples hold an `image` or `features`; refuses a file whose first examples hold neither."""
    reader, names, faults = RowReader(source, config), set[str](), list[Fault]()
    roles = [role for role in ("features", "image") if role in source.fields] or ["image", "features"]
    for record in islice(_records(path, config), _PEEK):
        example = record.example()
        if isinstance(example, Fault):
            faults.append(example)
            continue
        if found := next((role for role in roles if reader.find(example, role)), ""):
            return found
        names.update(example)
    if faults and not names:
        raise UsageError(f"source.path {path} cannot be read as TFRecord: {faults[0].message}")
    wanted = " or ".join(repr(source.fields.get(role, role)) for role in roles)
    raise UsageError(
        f"source.path {path} has no feature {wanted}; it has {', '.join(sorted(names)) or 'no records'}; "
        f"if it is called otherwise, say so with source.fields: {{{roles[0]}: its name}}"
    )


def _records(path: str, config: BuildConfig) -> Iterator[Record]:
    return read_file(path, limit=int(config.image.max_file_mb * 1e6) + _BESIDE_BYTES)


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per record; one that cannot be read has a fault, and where the file breaks off, that is the last one."""
    compressed = is_gzip(part.path)
    if compressed and not part.spooled:
        yield Row(file_name(part), file_name(part), {}, Location(part.path, 0), NOT_SPOOLED)
        return
    features, place = Features(source, config), _Placing(part, source, config, spool, in_place=not compressed)
    prefix = key_prefix(part, NAMES) or f"{NAMES.sub('', file_name(part))}/"
    for record in _records(part.path, config):
        key = f"{prefix}{record.number}"
        found = record.example()
        located = found if isinstance(found, Fault) else place.locate(found, record)
        if isinstance(found, Fault) or isinstance(located, Fault):
            fault = located if isinstance(located, Fault) else None
            yield Row(key, key, {}, Location(part.path, len(record.data), record.offset), fault)
        else:
            yield Row(key, key, features.values(found), located)


@dataclass(frozen=True)
class _Placing:
    """Finds or makes the place from which a record's payload is read later."""

    part: Partition
    source: SourceConfig
    config: BuildConfig
    spool: Spool
    in_place: bool

    def locate(self, example: Mapping[str, Values], record: Record) -> Location | Fault:
        """Where the picture or the features of an example lie."""
        role = self.part.note
        name, values = self.source.fields.get(role, role), RowReader(self.source, self.config).find(example, role)
        if not values:
            return record.fault_of(
                Reason.BAD_ROW, f"feature {name!r} is missing; it has {', '.join(sorted(example)) or 'none'}"
            )
        if role == "features" and not isinstance(values[0], bytes):
            row = np.asarray(values, "<f4" if isinstance(values[0], float) else "<i8")
            return self._place(row.tobytes(), record, form=array_form(row.dtype, row.shape))
        if role == "image" and len(values) == 1 and isinstance(values[0], bytes):
            return self._place(values[0], record, form="")
        what = "one picture" if role == "image" else "a row of numbers"
        return record.fault_of(Reason.BAD_ROW, f"feature {name!r} holds {shown(values)}, which is not {what}")

    def _place(self, payload: bytes, record: Record, *, form: str) -> Location | Fault:
        # Whichever occurrence is found, these are the bytes.
        found = record.data.find(payload) if self.in_place else -1
        if found >= 0:
            return Location(self.part.path, len(payload), record.offset + found, form=form)
        try:
            check_size(len(payload), self.config.image)
        except RejectedImage as reject:
            return record.fault_of(reject.reason, reject.message)
        return self.spool.add(payload, form=form)


class Features:
    """What a build asks of an example beside its payload, under the names that `RowReader` looks for."""

    def __init__(self, source: SourceConfig, config: BuildConfig) -> None:
        """Names are those in source.fields, else the usual ones."""
        self._fields, self._boxes = source.fields, config.boxes
        labels = (*self._names("label"), _OWN_LABEL)
        self._lists = labels if config.labels.kind == "multi" else ()
        others = [name for role in ("split", "group", "id", *config.columns) for name in self._names(role)]
        self._wanted = frozenset([*labels, *others, _OWN_KEY])

    def _names(self, role: str) -> tuple[str, ...]:
        return (self._fields[role],) if role in self._fields else USUAL_FIELDS.get(role, (role,))

    def values(self, example: Mapping[str, Values]) -> dict[str, Any]:
        """The features by name; a list of one is its value unless several could be meant, an empty one is nothing."""
        wanted = {name: [_text(value) for value in found] for name, found in example.items() if name in self._wanted}
        values: dict[str, Any] = {
            name: found[0] if len(found) == 1 and name not in self._lists else found or None
            for name, found in wanted.items()
        }
        if "label" not in self._fields and _OWN_LABEL in values:
            values["label"] = values[_OWN_LABEL]
        if "id" not in self._fields and _OWN_KEY in values:
            values.setdefault("id", values[_OWN_KEY])
        if self._boxes and (boxes := self._find_boxes(example)) is not None:
            values[self._fields.get("boxes", "boxes")] = boxes
        return values

    def _find_boxes(self, example: Mapping[str, Values]) -> list[list[Any]] | None:
        """Boxes from one flat feature, or from four: `<name>/xmin` and so on."""
        assert self._boxes is not None, "asked only where there are boxes"
        sides = _SIDES.get(self._boxes.format, ())
        names = self._names("boxes") if "boxes" in self._fields else (*self._names("boxes"), _DETECTION_BOXES)
        for name in names:
            if name in example:
                flat = example[name]
                return [list(flat[at : at + 4]) for at in range(0, len(flat), 4)]
            if sides and all(f"{name}/{side}" in example for side in sides):
                return [list(box) for box in zip_longest(*(example[f"{name}/{side}"] for side in sides))]
        return None


def _text(value: Any) -> Any:
    """Bytes as the text that they are, if they are."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


KIND = Kind(check, partition, rows)
