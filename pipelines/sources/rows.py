"""Rows in a source's own words become refs in ours: fields are found, labels read, columns cast, boxes checked.

What is wrong with one row is that row's fault and ends as a reject; it never stops the listing.
"""

import math
import numbers
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.config import BuildConfig, ColumnConfig, SourceConfig
from pipelines.reasons import Reason
from pipelines.sources.base import Partition, Row
from pipelines.storage import file_stat, is_remote, open_text
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
_LARGEST_FLOAT = 3.4028234e38  # records hold 32-bit floats


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
            return values.get(self.source.fields[role])
        names = USUAL_FIELDS.get(role, (role,))
        return next((values[name] for name in names if values.get(name) is not None), None)

    def _locate(self, values: Mapping[str, Any], partition: Partition) -> tuple[Location, str, Fault | None]:
        path = text_of(self.find(values, "path"))
        if not path:
            raise BadRow("path is empty")
        root = self.source.root or partition.root
        joined = (
            path if is_remote(path) else f"{root.rstrip('/')}/{path}" if is_remote(root) else os.path.join(root, path)
        )
        location = joined if is_remote(joined) else os.path.normpath(joined)
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
        value = partition.label or self.find(values, "label")
        if labels.kind == "regression":
            return (), self._target(value)
        if labels.kind == "multi":
            parts = value.split(labels.separator) if isinstance(value, str) else as_list(value)
            named = (
                self._label(part.strip() if isinstance(part, str) else part) for part in parts if part not in (None, "")
            )
            return tuple(dict.fromkeys(named)), ()
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            raise BadRow(f"label holds {shown(value)}; for several labels per input set labels.kind to multi")
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
        try:
            number = int(label)
        except ValueError:
            if label not in self.names:
                raise BadRow(f"label {label!r} is not one of the {len(self.names)} names in labels.names") from None
            return label
        if not 0 <= number < len(self.names):
            raise BadRow(f"label {number} is no id: labels.names has {len(self.names)} names, from 0")
        return self.names[number]

    def _target(self, value: Any) -> tuple[float, ...]:
        labels = self.config.labels
        parts = value.split(labels.separator) if isinstance(value, str) else as_list(value)
        if len(parts) != labels.length:
            raise BadRow(f"target holds {len(parts)} numbers, labels.length is {labels.length}")
        column = ColumnConfig(type="float")
        return tuple(float(self._cast(part, column, "target")) for part in parts)

    def _column(self, values: Mapping[str, Any], name: str, column: ColumnConfig) -> Cell:
        value = self.find(values, name)
        if column.is_scalar:
            return self._cast(value, column, f"column {name}")
        return tuple(self._cast(part, column, f"column {name}") for part in as_list(value))

    def _cast(self, value: Any, column: ColumnConfig, what: str) -> Scalar:
        try:
            return cast(value, column)
        except (TypeError, ValueError) as error:
            raise BadRow(f"{what} holds {shown(value)}, which is not {column.type}") from error

    def _boxes(self, values: Mapping[str, Any]) -> tuple[Box, ...]:
        if self.config.boxes is None:
            return ()
        boxes = [self._box(box, number) for number, box in enumerate(as_list(self.find(values, "boxes")), start=1)]
        for name, column in self.config.columns.items():
            if column.per == "box" and len(cells := as_list(self.find(values, name))) != len(boxes):
                raise BadRow(f"column {name} holds {len(cells)} values for {len(boxes)} boxes")
        return tuple(boxes)

    def _box(self, value: Any, number: int) -> Box:
        assert self.config.boxes is not None, "asked only where there are boxes"
        try:
            a, b, c, d = (float(part) for part in as_list(value))
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
        if not all(map(math.isfinite, box)) or box[0] >= box[2] or box[1] >= box[3]:
            raise BadRow(f"box {number} holds {shown(value)}, which has no area")
        return box


def as_list(value: Any) -> list[Any]:
    """Several values from whatever holds them; none from nothing, one from one."""
    if value is None:
        return []
    if hasattr(value, "tolist"):  # NumPy
        value = value.tolist()
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]


def text_of(value: Any) -> str:
    """A value as text: bytes are UTF-8, whole floats are ints, None is empty."""
    if value is None:
        return ""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a NumPy scalar
        value = value.item()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def shown(value: Any) -> str:
    """A value for a message, in bounds."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def cast(value: Any, column: ColumnConfig) -> Scalar:
    """A value as the column's type; raises TypeError or ValueError if it is none."""
    if hasattr(value, "item"):
        value = value.item()
    if column.type == "text":
        return text_of(value) if isinstance(value, bytes) else "" if value is None else str(value)
    if column.type == "float":
        if not abs(float(value)) <= _LARGEST_FLOAT:  # nor is NaN
            raise ValueError(f"{value} is not a finite 32-bit float")
        return float(value)
    number = int(value)
    if isinstance(value, numbers.Real) and value != number:
        raise ValueError(f"{value} is not an int")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value} does not fit in 64 bits")
    return number


def label_problem(label: str) -> str:
    """Labels are lines of label.labels.txt and of the vocabulary, so they must be visible and on one line."""
    return "" if label.strip() and label.isprintable() else f"label {label!r} is blank or has unprintable characters"


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
            names = tuple(unicodedata.normalize("NFC", line.rstrip("\r\n")) for line in stream if line.strip())
    except OSError as error:
        raise UsageError(f"labels.names {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"labels.names {path} is not UTF-8 text") from error
    if not names:
        raise UsageError(f"labels.names {path} has no names")
    for name in names:
        if problem := label_problem(name):
            raise UsageError(f"labels.names {path}: {problem}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"labels.names {path} has {twice[0]!r} twice; every class needs a name of its own")
    return names
