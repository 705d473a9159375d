"""Payloads that arrive in memory, in a table's cell or a function's item: they are spooled, or lead to a file."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.config import SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.pictures.forms import array_form, form_problem
from pipelines.reasons import Reason
from pipelines.sources.base import Row
from pipelines.sources.rows import USUAL_FIELDS
from pipelines.values import Fault

ROLES = ("image", "features", "path")  # the first that has a value is the payload


def field_name(role: str, names: Mapping[str, Any], source: SourceConfig) -> str:
    """What a row calls a role; "" if it has no value for it."""
    usual = USUAL_FIELDS.get(role, (role,))
    wanted = (source.fields[role],) if role in source.fields else usual
    return next((name for name in wanted if names.get(name) is not None), "")


def is_text(text: str) -> bool:
    """Whether a string can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_payload(row: Row, source: SourceConfig, spool: Spool) -> Row:
    """The row with a location in the spool, or with the path that its payload is; with a fault if it has none."""
    for role in ROLES:
        if name := field_name(role, row.values, source):
            payload = row.values[name]
            kept = {"path": payload.get("path")} if isinstance(payload, Mapping) else None  # `id: image.path` needs it
            return _store(row._replace(values={**row.values, name: kept}), role, payload, source, spool)
    return _faulty(row, "image is empty")


def _store(row: Row, role: str, payload: Any, source: SourceConfig, spool: Spool) -> Row:
    if isinstance(payload, Mapping):  # Hugging Face's {bytes, path}
        payload = payload.get("path") if payload.get("bytes") is None else payload["bytes"]
    if isinstance(payload, str | os.PathLike):
        return row._replace(values={**row.values, source.fields.get("path", "path"): os.fspath(payload)})
    if isinstance(payload, bytes | bytearray | memoryview):
        return row._replace(location=spool.add(payload))
    if isinstance(payload, np.ndarray) or (role == "features" and isinstance(payload, list | tuple)):
        return _store_array(row, role, payload, spool)
    if payload is None:
        return _faulty(row, f"{role} is empty")
    kind = type(payload).__name__
    return _faulty(row, f"{role} holds a {kind}, which is neither the bytes of a file nor an array nor a path")


def _store_array(row: Row, role: str, payload: Any, spool: Spool) -> Row:
    try:
        array = np.asarray(payload)
    except ValueError:  # lists of different lengths in a list
        return _faulty(row, f"{role} holds a list that is not a row of numbers")
    if role == "image" and array.ndim == 1:
        return _faulty(
            row, "image is an array of one dimension; give an encoded picture as bytes, and rows as features"
        )
    if problem := form_problem(array.dtype, array.shape):
        return _faulty(row, problem)
    return row._replace(location=spool.add(np.ascontiguousarray(array).data, form=array_form(array.dtype, array.shape)))


def _faulty(row: Row, message: str) -> Row:
    return row._replace(fault=Fault(Reason.BAD_ROW, message))
