"""One input in, one record out: what a decoder process does with a reference, without Beam or TensorFlow."""

import hashlib
import os
import zlib
from dataclasses import dataclass
from typing import Any

from pipelines.config import BuildConfig, ImageConfig
from pipelines.inputs.content import content_digest
from pipelines.inputs.storage import open_binary
from pipelines.pictures.boxes import place_boxes
from pipelines.pictures.forms import to_row
from pipelines.pictures.images import Picture, process_array, process_image
from pipelines.reasons import Reason, RejectedImage
from pipelines.values import Fault, InputRef, Location
from shards.example import Value, encode_example


@dataclass(frozen=True, slots=True)
class Task:
    """An input to process; `data` are its bytes if they were read already (from a remote file).

    A `verdict` is a refusal that has been reached; the input is then only read, for the reject's sake.
    """

    ref: InputRef
    label_ids: tuple[int, ...]
    data: bytes | None = None
    verdict: Fault | None = None

    def perform(self, config: BuildConfig) -> "Outcome":
        """What becomes of the input."""
        return process_input(self, config)

    def refuse(self, reason: str, message: str) -> "Outcome":
        """What becomes of it if it cannot even be read."""
        return Refused(reason, message)


@dataclass(frozen=True, slots=True)
class Made:
    """An input that became a record, its row of facts, and what the accounts want to know."""

    record: bytes
    facts: tuple[Any, ...]
    format: str = ""
    sides: tuple[int, int] = (0, 0)
    boxes_kept: int = 0
    boxes_dropped: int = 0
    truncated: bool = False
    content: int = 0

    @property
    def weight(self) -> int:
        """How many bytes it takes to hand this over, roughly."""
        return len(self.record)


@dataclass(frozen=True, slots=True)
class Refused:
    """An input that did not; `data` only if the build keeps such bytes, `location` only if it was refused before."""

    reason: str
    message: str
    size: int = 0
    sha256: str = ""
    data: bytes = b""
    location: str = ""

    @property
    def weight(self) -> int:
        """How many bytes it takes to hand this over, roughly."""
        return len(self.data)


Outcome = Made | Refused


def process_input(task: Task, config: BuildConfig) -> Outcome:
    """Turns one input into a record, or says why not."""
    ref, data = task.ref, b""
    if ref.fault:
        return Refused(*ref.fault)
    try:
        data = read_input(ref.location, config.image) if task.data is None else task.data
        if task.verdict:
            return refuse(*task.verdict, data, config)
        return _make_row(task, data, config) if _is_row(ref) else _make_picture(task, data, config)
    except RejectedImage as reject:
        return refuse(reject.reason, reject.message, data, config)


def refuse(reason: str, message: str, data: bytes, config: BuildConfig) -> Refused:
    """A refusal with what is known of the bytes."""
    digest = hashlib.sha256(data).hexdigest() if data else ""
    return Refused(reason, message, len(data), digest, data if config.quarantine else b"")


def _is_row(ref: InputRef) -> bool:
    return bool(ref.location.form) and "," not in ref.location.form


def _make_row(task: Task, data: bytes, config: BuildConfig) -> Made:
    row = to_row(data, task.ref.location.form).tolist()
    features: dict[str, Value] = {"features": row} | _common_features(task, config)
    return Made(encode_example(features), (row, *_common_facts(task.ref, config)), content=content_digest(data))


def _make_picture(task: Task, data: bytes, config: BuildConfig) -> Made:
    ref = task.ref
    form = ref.location.form
    picture = process_array(data, form, config.image) if form else process_image(data, config.image)
    features: dict[str, Value] = _common_features(task, config) | {
        "image": picture.data,
        "height": [picture.height],
        "width": [picture.width],
    }
    kept = len(ref.boxes)
    if config.boxes:
        boxes = _box_features(ref, picture, config)
        kept = len(boxes["boxes"]) // 4
        features |= boxes
    return Made(
        encode_example(features),
        (picture.channel_mean, picture.channel_mean_square, *_common_facts(ref, config)),
        format=picture.format,
        sides=(picture.height, picture.width),
        boxes_kept=kept,
        boxes_dropped=len(ref.boxes) - kept,
        truncated=picture.truncated,
        content=content_digest(data),
    )


def _common_features(task: Task, config: BuildConfig) -> dict[str, Value]:
    """What pictures and rows have in common; `schema.feature_list` describes them."""
    ref = task.ref
    features: dict[str, Value] = {"key": ref.key.encode()}
    if config.labels.kind in ("single", "multi"):
        features |= {"label": task.label_ids, "label_name": [label.encode() for label in ref.labels]}
    elif config.labels.kind == "regression":
        features["target"] = ref.target
    for (name, column), cell in zip(config.columns.items(), ref.columns, strict=True):
        if column.per == "input":
            features[name] = _column_value(cell)
    return features


def _column_value(cell: Any) -> Value:
    cells = cell if isinstance(cell, tuple) else (cell,)
    return [value.encode() if isinstance(value, str) else value for value in cells]


def _box_features(ref: InputRef, picture: Picture, config: BuildConfig) -> dict[str, Any]:
    assert config.boxes is not None, "asked only where there are boxes"
    placed = place_boxes(
        ref.boxes,
        config.boxes,
        stored=picture.stored_size,
        orientation=picture.orientation,
        geometry=picture.geometry,
    )
    features: dict[str, Any] = {
        "boxes": [side for left, top, right, bottom in placed.boxes for side in (top, left, bottom, right)]
    }
    for (name, column), cell in zip(config.columns.items(), ref.columns, strict=True):
        if column.per == "box":
            assert isinstance(cell, tuple), "rows.RowReader made it so"
            features[name] = _column_value(tuple(cell[number] for number in placed.kept))
    return features


def _common_facts(ref: InputRef, config: BuildConfig) -> tuple[Any, ...]:
    """The end of a row of `facts.facts_schema`."""
    labels: tuple[Any, ...] = ()
    if config.labels.kind in ("single", "multi"):
        labels = ([label.encode() for label in ref.labels],)
    elif config.labels.kind == "regression":
        labels = (list(ref.target),)
    cells = zip(config.columns.values(), ref.columns, strict=True)
    return (*labels, *(_column_value(cell) for column, cell in cells if column.is_scalar))


def read_input(location: Location, image: ImageConfig) -> bytes:
    """The bytes of an input; refuses, before reading, what is too large or no longer what was listed."""
    if not location.form:
        check_size(location.size, image)
    try:
        with open_binary(location.path, buffered=False) as stream:
            if location.is_whole_file:
                return _read_file(stream, location)
            if location.modified and os.fstat(stream.fileno()).st_mtime_ns != location.modified:
                raise RejectedImage(Reason.CHANGED, "the file was modified after it was listed; build again")
            stream.seek(location.offset)
            data = stream.read(location.size)
    except OSError as error:
        raise RejectedImage(Reason.UNREADABLE, f"{error.strerror or error}") from error
    if len(data) < location.size:
        problem = f"{location.path} ends {location.size - len(data)} bytes early; did it change?"
        raise RejectedImage(Reason.CHANGED, problem)
    return inflate(data, image) if location.coding == "deflate" else data


def _read_file(stream: Any, location: Location) -> bytes:
    if location.modified:
        found = os.fstat(stream.fileno())
        if (found.st_size, found.st_mtime_ns) != (location.size, location.modified):
            what = f"had {location.size} bytes when it was listed and has {found.st_size} now"
            if found.st_size == location.size:
                what = "was modified after it was listed"
            raise RejectedImage(Reason.CHANGED, f"the file {what}; build again")
    # One byte more than was listed shows that it grew, and no file can make us read without end.
    data: bytes = stream.read(location.size + 1)
    if len(data) != location.size:
        raise RejectedImage(Reason.CHANGED, f"the file has not the {location.size} bytes that were listed; build again")
    return data


def check_size(size: int, image: ImageConfig) -> None:
    """Refuses more bytes than the config allows."""
    if size > image.max_file_mb * 1e6:
        message = f"file has {size / 1e6:.1f} MB, image.max_file_mb is {image.max_file_mb:g}"
        raise RejectedImage(Reason.FILE_TOO_LARGE, message)


def inflate(data: bytes, image: ImageConfig) -> bytes:
    """Undoes raw deflate, up to the size that the config allows."""
    limit = int(image.max_file_mb * 1e6)
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise RejectedImage(Reason.UNREADABLE, f"the archive's compressed bytes are damaged: {error}") from error
    check_size(len(inflated), image)
    if not stream.eof:
        raise RejectedImage(Reason.UNREADABLE, "the archive's compressed bytes end early")
    return inflated
