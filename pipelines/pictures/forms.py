"""Arrays as inputs: how their bytes are described in a location, and how they become pixels or a row of features."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.pictures.resize import Pixels
from pipelines.reasons import Reason, RejectedImage

_CHANNELS = (1, 3, 4)


def array_form(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str:
    """The form of one input: NumPy's type string and the shape, as in `|u1:28,28`."""
    return f"{dtype.str}:{','.join(map(str, shape))}"


@lru_cache(maxsize=256)
def parse_form(form: str) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    """The type and shape that a form describes."""
    dtype, _, shape = form.partition(":")
    return np.dtype(dtype), tuple(int(side) for side in shape.split(","))


def row_length(form: str) -> int:
    """How many features a row has; 0 for pictures."""
    if not form:
        return 0
    _, shape = parse_form(form)
    return shape[0] if len(shape) == 1 else 0


def pixel_count(form: str) -> int:
    """How many pixels an array has."""
    _, shape = parse_form(form)
    return math.prod(shape[:2])


def form_problem(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str:
    """Why an array of this type and shape cannot be an input; "" if it can."""
    if len(shape) == 1 and not shape[0]:
        return "rows of no numbers are not features"
    if len(shape) == 1:
        return "" if dtype.kind in "fiub" else f"rows of {dtype} are not features; they must be numbers"
    if dtype != np.uint8 and dtype.kind != "f":
        return f"pictures of {dtype} are not read; they must be uint8, or float from 0 to 1"
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in _CHANNELS):
        return "" if min(shape) else f"pictures of shape {shape} have no pixels"
    if len(shape) == 3 and shape[0] in _CHANNELS:
        return f"inputs of shape {shape} have their channels first; move them last (numpy.moveaxis)"
    return f"inputs of shape {shape} are neither pictures (height, width[, channels]) nor rows of features"


def to_pixels(data: bytes, form: str) -> Pixels:
    """RGB pixels of an array: grey is replicated, floats from 0 to 1 become round(255 v), alpha is over white."""
    array = _array(data, form)
    if array.dtype != np.uint8:
        array = _to_levels(array)
    return _to_rgb(array.reshape(*array.shape[:2], -1))


def _to_levels(array: npt.NDArray[Any]) -> Pixels:
    lowest, highest = float(array.min()), float(array.max())  # NaN, if there is any
    if math.isnan(lowest):
        raise RejectedImage(Reason.BAD_VALUES, "pixels are not all numbers")
    if lowest < 0 or highest > 1:
        raise RejectedImage(Reason.BAD_VALUES, f"pixels from {lowest:g} to {highest:g} are not in 0..1")
    return np.rint(array.astype(np.float64) * 255).astype(np.uint8)


def _to_rgb(array: Pixels) -> Pixels:
    channels = array.shape[2]
    if channels == 1:
        return np.repeat(array, 3, axis=2)
    if channels == 4:
        alpha = array[:, :, 3:].astype(np.uint16)
        over_white = array[:, :, :3] * alpha + 255 * (255 - alpha) + 127
        return (over_white // 255).astype(np.uint8)
    return np.ascontiguousarray(array)


def to_row(data: bytes, form: str) -> npt.NDArray[np.float32]:
    """The features of a row; they must be finite as 32-bit floats."""
    with np.errstate(over="ignore"):
        array = _array(data, form)
        row = array.astype(np.float32)
    if not np.isfinite(row).all():
        place = int(np.argmin(np.isfinite(row)))
        message = f"feature {place} is {float(array[place]):g}, not a finite 32-bit float"
        raise RejectedImage(Reason.BAD_VALUES, message)
    return row


def _array(data: bytes, form: str) -> npt.NDArray[Any]:
    dtype, shape = parse_form(form)
    if len(data) != dtype.itemsize * math.prod(shape):
        raise RejectedImage(Reason.CHANGED, f"{len(data)} bytes are not an array of {form}; did the file change?")
    return np.frombuffer(data, dtype).reshape(shape)
