"""Rows in a source's own words become refs in ours: fields are found, labels read, columns cast, boxes checked.

What is wrong with one row is that row's fault and ends as a reject; it never stops the listing.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipelines.config import BuildConfig, ColumnConfig, SourceConfig
from pipelines.inputs.storage import file_stat, is_remote, join_path, open_text
from pipelines.reasons import Reason
from pipelines.sources.base import Partition, Row
from pipelines.sources.cells import as_list, cast, is_finite_box, is_several, shown, split_text, text_of, unwrap
from pipelines.values import Box, Cell, Fault, InputRef, Location, Scalar
from shards.errors import UsageError

# Where a role is looked for when source.fields does not say.
USUAL_FIELDS: dict[str, tuple[str, ...]] = {
    "path": ("path", "file_name"),
    "image": ("image", "image/encoded"),
    "features": ("features", "data"),
    "label": ("label", "labels", "target", "image/class/label"),
    "split": ("split",),
    "group": ("group",),
    "id": ("id",),
    "boxes": ("boxes",),
}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_FLOAT = ColumnConfig(type="float")


class BadRow(ValueError):
    """What is wrong with a row, in words that stand behind its place."""

    def __init__(self, message: str, reason: Reason = Reason.BAD_ROW) -> None:
        """The message names the field and its value."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class RowReader:
    """Turns the rows of one source into refs, as the build's labels, columns, boxes and splits ask."""

    source: SourceConfig
    config: BuildConfig
    names: tuple[str, ...] = ()  # of labels.names

    def ref(self, row: Row, partition: Partition) -> InputRef:
        """The ref of a row; one with a fault if the row cannot be used."""
        if row.fault:
            return self._faulty(row, partition, row.fault)
        try:
            return self._good(row, partition)
        except BadRow as problem:
            return self._faulty(row, partition, Fault(problem.reason, str(problem)))

    def _faulty(self, row: Row, partition: Partition, fault: Fault) -> InputRef:
        location = row.location or Location(partition.path, 0)
        key = self._prefixed(row.key if row.location else row.place)
        split = self.source.split or partition.split
        return InputRef(key, location, split=split, source=partition.source, fault=fault)

    def _good(self, row: Row, partition: Partition) -> InputRef:
        located = (row.location, row.key, None) if row.location else self._locate(row.values, partition)
        location, key, fault = located
        given = text_of(self.find(row.values, "id"))
        labels, target = self._labels(row.values, partition)
        return InputRef(
            key=self._prefixed(unicodedata.normalize("NFC", given) or key),
            location=location,
            labels=labels,
            target=target,
            split=self._split(row.values, partition),
            group=text_of(self.find(row.values, "group")),
            columns=tuple(self._column(row.values, name, column) for name, column in self.config.columns.items()),
            boxes=self._boxes(row.values),
            source=partition.source,
            fault=fault,
        )

    def _prefixed(self, key: str) -> str:
        return f"{self.source.name}/{key}" if self.source.name else key

    def find(self, values: Mapping[str, Any], role: str) -> Any:
        """The value of a role or column: by the name that source.fields gives, else by the usual ones."""
        if role in self.source.fields:
            return look_up(values, self.source.fields[role])
        names = USUAL_FIELDS.get(role, (role,))
        return next((values[name] for name in names if values.get(name) is not None), None)

    def knows(self, names: Iterable[str], role: str) -> bool:
        """Whether a source with fields of these names has one for the role."""
        wanted = (self.source.fields[role],) if role in self.source.fields else USUAL_FIELDS.get(role, (role,))
        present = set(names)
        return any(name in present or name.partition(".")[0] in present for name in wanted)

    def _locate(self, values: Mapping[str, Any], partition: Partition) -> tuple[Location, str, Fault | None]:
        path = path_of(self.find(values, "path"))
        root = self.source.root or partition.root
        location = join_path(self.source.root or partition.folder or root, path)
        found = file_stat(location)
        fault = Fault(Reason.UNREADABLE, found.problem) if found.problem else None
        return Location(location, found.size, modified=found.modified), listing_key(location, root), fault

    def _split(self, values: Mapping[str, Any], partition: Partition) -> str:
        split = self.source.split or text_of(self.find(values, "split")) or partition.split
        if split and not split.isidentifier():
            raise BadRow(f"split {split!r} must be letters, digits and underscores", Reason.UNKNOWN_SPLIT)
        if split and self.config.splits.use_given and not self.config.splits.knows(split):
            known = ", ".join([*self.config.splits.fractions, *self.config.splits.given])
            problem = f"split {split!r} is not one of {known} nor a usual name; if it is meant, add it to splits.given"
            raise BadRow(problem, Reason.UNKNOWN_SPLIT)
        return split

    def _labels(self, values: Mapping[str, Any], partition: Partition) -> tuple[tuple[str, ...], tuple[float, ...]]:
        labels = self.config.labels
        if labels.kind == "none":
            return (), ()
        value = unwrap(partition.label or self.find(values, "label"))
        if labels.kind == "regression":
            return (), self._target(value)
        if labels.kind == "multi":
            named = (self._label(part) for part in split_text(value, labels.separator) if part not in (None, ""))
            return tuple(dict.fromkeys(named)), ()
        if is_several(value):
            if len(several := as_list(value)) > 1:
                raise BadRow(f"label holds {shown(several)}; for several labels per input set labels.kind to multi")
            value = several[0] if several else None
        return (self._label(value),), ()

    def _label(self, value: Any) -> str:
        label = unicodedata.normalize("NFC", text_of(value))
        if not label:
            raise BadRow("label is empty", Reason.NO_LABEL)
        if problem := label_problem(label):
            raise BadRow(problem)
        return self._named(label) if self.names else label

    def _named(self, label: str) -> str:
        """With a names file an integer is a line number, and everything else must be one of the names."""
        if not _INTEGER.fullmatch(label):
            if label not in self._known_names:
                raise BadRow(f"label {shown(label)} is not one of the {len(self.names)} names in labels.names")
            return label
        number = int(label)
        if not 0 <= number < len(self.names):
            raise BadRow(f"label {number} is no id: labels.names has {len(self.names)} names, from 0")
        return self.names[number]

    @cached_property
    def _known_names(self) -> frozenset[str]:
        return frozenset(self.names)

    def _target(self, value: Any) -> tuple[float, ...]:
        labels = self.config.labels
        parts = split_text(value, labels.separator)
        if not parts:
            raise BadRow("target is empty", Reason.NO_LABEL)
        if len(parts) != labels.length:
            raise BadRow(f"target holds {shown(value)}, {len(parts)} values, but labels.length is {labels.length}")
        return tuple(float(self._cast(part, _FLOAT, "target")) for part in parts)

    def _column(self, values: Mapping[str, Any], name: str, column: ColumnConfig) -> Cell:
        value = unwrap(self.find(values, name))
        if not column.is_scalar:
            return tuple(self._cast(part, column, f"column {name}") for part in self._several(value, f"column {name}"))
        if is_several(value):
            raise BadRow(f"column {name} holds {shown(value)}; for several values set columns.{name}.list to true")
        return self._cast(value, column, f"column {name}")

    def _several(self, value: Any, what: str) -> list[Any]:
        try:
            return as_list(value)
        except ValueError as error:
            raise BadRow(f"{what} holds {shown(value)}, which is not a JSON list") from error

    def _cast(self, value: Any, column: ColumnConfig, what: str) -> Scalar:
        try:
            return cast(value, column)
        except (TypeError, ValueError) as error:
            raise BadRow(f"{what} holds {shown(value)}, which is not {column.type}") from error

    def _boxes(self, values: Mapping[str, Any]) -> tuple[Box, ...]:
        if self.config.boxes is None:
            return ()
        found = self._several(self.find(values, "boxes"), "boxes")
        if found and not any(map(is_several, found)):  # one flat list, as records hold it
            if len(found) % 4:
                raise BadRow(f"boxes holds {shown(found)}, {len(found)} numbers, which are no boxes of four")
            found = [found[start : start + 4] for start in range(0, len(found), 4)]
        boxes = [self._box(box, number) for number, box in enumerate(found, start=1)]
        for name, column in self.config.columns.items():
            if column.per == "box" and (count := len(self._several(self.find(values, name), name))) != len(boxes):
                raise BadRow(f"column {name} holds {count} values for {len(boxes)} boxes")
        return tuple(boxes)

    def _box(self, value: Any, number: int) -> Box:
        assert self.config.boxes is not None, "asked only where there are boxes"
        try:
            a, b, c, d = (float(cast(part, _FLOAT)) for part in as_list(value))
        except (TypeError, ValueError) as error:
            raise BadRow(f"box {number} holds {shown(value)}, which is not four numbers") from error
        match self.config.boxes.format:
            case "xyxy":
                box = (a, b, c, d)
            case "yxyx":
                box = (b, a, d, c)
            case "xywh":
                box = (a, b, a + c, b + d)
            case "cxcywh":
                box = (a - c / 2, b - d / 2, a + c / 2, b + d / 2)
        if not is_finite_box(box):
            what = f"which has no area as {self.config.boxes.format}"
            raise BadRow(f"box {number} holds {shown(value)}, {what}")
        return box


def path_of(value: Any) -> str:
    """A path as the file system wants it, names that are not UTF-8 included."""
    path = os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else text_of(value)
    if not path:
        raise BadRow("path is empty")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:  # JSON may hold half of a surrogate pair
        raise BadRow(f"path {shown(path)} is not text") from error
    return path


def look_up(values: Mapping[str, Any], name: str) -> Any:
    """The value of a field; `objects.bbox` is also the field bbox of a mapping called objects."""
    if name in values or "." not in name:
        return values.get(name)
    first, _, rest = name.partition(".")
    inner = values.get(first)
    return look_up(inner, rest) if isinstance(inner, Mapping) else None


def label_problem(label: str) -> str:
    """Labels are lines of label.labels.txt and of the vocabulary, so they must be visible and on one line."""
    return (
        "" if label.strip() and label.isprintable() else f"label {shown(label)} is blank or has unprintable characters"
    )


def make_key(path: str) -> str:
    """A path as a key: forward slashes, NFC, and undecodable bytes spelt out."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", text.replace(os.sep, "/"))


def listing_key(location: str, root: str) -> str:
    """The key of a file that a listing names: its path below the root."""
    if is_remote(location):
        return make_key(
            location.removeprefix(root.rstrip("/") + "/").partition("://")[2]
            or location.removeprefix(root.rstrip("/") + "/")
        )
    if is_remote(root):
        return make_key(os.path.abspath(location).lstrip("/"))
    relative = os.path.relpath(location, root)
    # Outside the listing's folder the absolute path, without its root, is the only stable name there is.
    return make_key(os.path.abspath(location).lstrip("/") if relative.startswith("..") else relative)


def relative_key(path: str, root: str) -> str:
    """The key of a file that was found below a root."""
    return make_key(path[len(root) :].lstrip("/") if path.startswith(root) else path)


def read_names(config: BuildConfig) -> tuple[str, ...]:
    """The class names in labels.names, in id order; refuses what cannot be one."""
    if not config.labels.names:
        return ()
    path = config.labels.names
    try:
        with open_text(path) as stream:
            lines = [unicodedata.normalize("NFC", line.rstrip("\r\n")) for line in stream]
    except OSError as error:
        raise UsageError(f"labels.names {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"labels.names {path} is not UTF-8 text") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UsageError(f"labels.names {path} has no names")
    # A blank line is refused rather than skipped: the ids are line numbers, and would shift.
    for number, name in enumerate(lines, start=1):
        if problem := label_problem(name):
            raise UsageError(f"labels.names {path} line {number}: {problem}")
    (name, count), *_ = Counter(lines).most_common(1)
    if count > 1:
        raise UsageError(f"labels.names {path} has {name!r} twice; every class needs a name of its own")
    return tuple(lines)
