"""Cells: values as a source holds them (CSV text, JSON, Python, NumPy, Arrow) become the types that records hold."""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from pipelines.config import ColumnConfig
from pipelines.values import Scalar

_LARGEST_FLOAT = float(np.finfo(np.float32).max)  # records hold 32-bit floats
_TRUTHS = {"true": 1, "false": 0}


def unwrap(value: Any) -> Any:
    """The Python value in a NumPy scalar or a tensor; nested lists for arrays."""
    if hasattr(value, "numpy"):  # TensorFlow's and PyTorch's tensors
        value = value.numpy()
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]")  # nanoseconds would become an int
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, or the NaN or NaT with which tables say so."""
    return value is None or (isinstance(value, float | datetime) and value != value)


def is_several(value: Any) -> bool:
    """Whether a value holds other values."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def as_list(value: Any) -> list[Any]:
    """Several values from whatever holds them, a JSON list in a text too; none from nothing, one from one.

    Raises ValueError if a text starts like a JSON list and is none.
    """
    value = unwrap(value)
    if isinstance(value, str):
        value = parse_list(value)
    if is_missing(value):
        return []
    return list(value) if is_several(value) and not isinstance(value, Mapping) else [value]


def parse_list(text: str) -> Any:
    """A JSON list that a text holds, None from a blank text, else the text itself."""
    if not text.strip():
        return None
    if not text.lstrip().startswith("["):
        return text
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists are nested too deep") from error


def split_text(value: Any, separator: str) -> list[Any]:
    """Several values as `as_list`, or those between the separators of a text that is no JSON list."""
    try:
        parts = as_list(value)
    except ValueError:
        parts = [value]  # it starts with a bracket, but is no JSON
    return [part.strip() for part in value.split(separator)] if parts == [value] and isinstance(value, str) else parts


def text_of(value: Any) -> str:
    """A value as a name: whole floats are ints (tables with gaps have no others), a missing value is empty."""
    value = unwrap(value)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else to_text(value)


def to_text(value: Any) -> str:
    """A value as text that UTF-8 can hold: bytes are UTF-8, times are in ISO format, a missing value is empty."""
    if is_missing(value):
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    text = value.isoformat() if isinstance(value, date | time) else str(value)
    return text.encode("utf-8", "backslashreplace").decode()  # JSON may hold half of a surrogate pair


def shown(value: Any) -> str:
    """A value for a message, in bounds."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def cast(value: Any, column: ColumnConfig) -> Scalar:
    """A value as the column's type; raises TypeError or ValueError if it is none."""
    value = unwrap(value)
    if is_several(value):
        raise TypeError("several values")
    if column.type == "text":
        return to_text(value)
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str) and "_" in value:
        raise ValueError("Python's numbers may have underscores, data may not")
    return _to_float(value) if column.type == "float" else _to_int(value)


def _to_float(value: Any) -> float:
    try:
        number = float(value)
    except OverflowError as error:  # of an int
        raise ValueError("not a finite 32-bit float") from error
    if not abs(number) <= _LARGEST_FLOAT:  # nor is NaN
        raise ValueError("not a finite 32-bit float")
    return number


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        value = _TRUTHS.get(value.strip().lower(), value)
    try:
        # Decimal reads text such as 3.0, which tables with gaps make of ints, and loses no digit of a large one.
        exact = Decimal(value) if isinstance(value, str) else value
        if not -(2**63) <= exact < 2**63:
            raise ValueError("does not fit in 64 bits")
    except InvalidOperation as error:
        raise ValueError("not a number") from error
    number = int(exact)
    if number != exact:
        raise ValueError("not a whole number")
    return number


def is_finite_box(box: tuple[float, ...]) -> bool:
    """Whether left, top, right, bottom are numbers and enclose an area."""
    return all(map(math.isfinite, box)) and box[0] < box[2] and box[1] < box[3]
