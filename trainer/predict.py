"""Asks an exported model about files, with nothing but the SavedModel itself."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps, UnidentifiedImageError

from shards.errors import UsageError
from trainer.quiet import reason_of

BATCH = 32
EXIF_ORIENTATION, UPRIGHT = 0x0112, 1


@dataclass(frozen=True)
class Prediction:
    """The answer for one file: a label with its probability, or an error."""

    file: str
    label: str | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    error: str | None = None


def load_served(directory: str) -> Any:
    """The serving function of an exported model; keeps the model alive as its attribute."""
    if not (Path(directory) / "saved_model.pb").is_file():
        raise UsageError(f"no exported model at {directory}; make one with: python -m trainer export CONFIG")
    loaded = tf.saved_model.load(directory)
    function = loaded.signatures["serving_default"]
    function.owner = loaded  # the function holds its variables weakly
    return function


def predict(served: Any, files: Sequence[str]) -> Iterator[Prediction]:
    """One prediction per file, in order; a file that cannot be read or decoded does not hold up the others."""
    for first in range(0, len(files), BATCH):
        yield from _predict_some(served, files[first : first + BATCH])


def _predict_some(served: Any, files: Sequence[str]) -> Iterator[Prediction]:
    data = {name: _read(name) for name in files}
    readable = [name for name in files if isinstance(data[name], bytes)]
    answers = _ask(served, {name: data[name] for name in readable})
    for name in files:
        problem = data[name]
        yield answers[name] if isinstance(problem, bytes) else Prediction(file=name, error=str(problem))


def _ask(served: Any, data: dict[str, Any]) -> dict[str, Prediction]:
    """Predicts all at once; if that fails, one by one, to find out who is to blame."""
    if not data:
        return {}
    try:
        answer = {name: tensor.numpy() for name, tensor in served(image_bytes=tf.constant(list(data.values()))).items()}
    except tf.errors.InvalidArgumentError as error:
        if len(data) > 1:
            return {name: _ask(served, {name: value})[name] for name, value in data.items()}
        name = next(iter(data))
        return {name: Prediction(file=name, error=f"cannot be decoded: {reason_of(error.message)}")}
    return {name: _answer(name, {key: values[row] for key, values in answer.items()}) for row, name in enumerate(data)}


def _answer(name: str, row: dict[str, Any]) -> Prediction:
    classes = [label.decode() for label in row["classes"]]
    values = np.round(row["probabilities"].astype(float), 6).tolist()
    return Prediction(
        file=name,
        label=row["label"].decode(),
        probability=round(float(row["probability"]), 6),
        probabilities=dict(zip(classes, values, strict=True)),
    )


def _read(name: str) -> bytes | OSError:
    try:
        return plain(Path(name).read_bytes())
    except OSError as error:
        return OSError(f"cannot be read: {error.strerror or error}")


def plain(data: bytes) -> bytes:
    """The same bytes, or an upright and opaque PNG: the build heeds EXIF and transparency, TensorFlow does not."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            turned = picture.getexif().get(EXIF_ORIENTATION, UPRIGHT) != UPRIGHT
            if not turned and not picture.has_transparency_data:
                return data
            return _as_png(ImageOps.exif_transpose(picture))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return data  # the model says what is wrong with it


def _as_png(picture: Image.Image) -> bytes:
    opaque = Image.new("RGBA", picture.size, "white")
    opaque.alpha_composite(picture.convert("RGBA"))
    stream = io.BytesIO()
    opaque.convert("RGB").save(stream, "PNG")
    return stream.getvalue()
