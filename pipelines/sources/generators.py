"""Functions of the user's own, `module:function`, that yield inputs; whatever they yield is spooled as it comes.

The function is called once, in one worker, with `source.arguments`. Its inputs are called by their `id`, by their path,
or by their running number.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.reasons import Reason
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.payloads import ROLES, field_name, is_text, with_payload
from pipelines.values import Fault
from shards.errors import ShardsmithError, UsageError


def check(source: SourceConfig, config: BuildConfig) -> None:
    """Refuses what cannot be imported or called with the given arguments; nothing is called."""
    function = find_function(source.path)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables in C tell nothing of themselves
        return
    try:
        signature.bind(**source.arguments)
    except TypeError as error:
        raise UsageError(f"source.arguments do not fit {source.path}{signature}: {error}") from error


def find_function(path: str) -> Callable[..., Iterable[Any]]:
    """What `module:function` names; modules in the current directory count."""
    module, _, name = path.partition(":")
    if not (module and name):
        raise UsageError(f"source.path {path} is not of the form module:function, as in my_data:examples")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except AttributeError as error:
        raise UsageError(f"source.path {path}: {error}") from error
    except ModuleNotFoundError as error:
        where = "neither in the current directory nor installed"
        raise UsageError(f"source.path {path}: no module called {error.name!r}, {where}") from error
    except Exception as error:  # a user's module can fail in any way
        raise UsageError(f"source.path {path} cannot be imported: {describe(error)}") from error
    if not callable(function):
        raise UsageError(f"source.path {path} is a {type(function).__name__}, not a function")
    return function


def partition(source: SourceConfig, config: BuildConfig) -> list[Partition]:
    """One piece: only the function itself knows where its items come from."""
    return [Partition(0, "python", source.path, source.root or ".", spooled=True)]


def rows(part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
    """A row per item, its payload in the spool."""
    for number, item in enumerate(_items(source)):
        row = Row(f"{source.path} item {number}", f"{number:08d}", {})
        try:
            yield with_payload(row._replace(values=_named(item, source)), source, spool)
        except BadItem as problem:
            yield row._replace(fault=Fault(Reason.BAD_ROW, str(problem)))


class BadItem(ValueError):
    """What is wrong with an item."""


def _items(source: SourceConfig) -> Iterator[Any]:
    """What the function gives, tensors as NumPy; a failure in it stops the build, for nobody knows what is missing."""
    function = find_function(source.path)
    count = 0
    try:
        for item in function(**source.arguments):
            yield _plain(item)
            count += 1
    except Exception as error:
        place = _place_of(error, function)
        problem = f"source.path {source.path} failed after {count:,} items with {describe(error)}{place}"
        raise ShardsmithError(f"{problem}; what it had given is not used") from error


def _place_of(error: Exception, function: Callable[..., Any]) -> str:
    """The last line of the user's own file that was running."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename
    ]
    return f" ({os.path.basename(frames[-1].filename)} line {frames[-1].lineno})" if frames else ""


def describe(error: Exception) -> str:
    """An error of the user's code on one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _plain(item: Any) -> Any:
    """An item without tensors."""
    if isinstance(item, Mapping):
        return {name: _plain(value) for name, value in item.items()}
    if isinstance(item, tuple | list):
        return tuple(map(_plain, item)) if isinstance(item, tuple) else [*map(_plain, item)]
    return item.numpy() if hasattr(item, "numpy") else item


def _named(item: Any, source: SourceConfig) -> dict[str, Any]:
    """The values of an item by their names; a pair is (picture or features, label)."""
    if isinstance(item, tuple) and len(item) == 2:
        role = "features" if getattr(item[0], "ndim", 0) == 1 or isinstance(item[0], list) else "image"
        item = {source.fields.get(role, role): item[0], source.fields.get("label", "label"): item[1]}
    if not isinstance(item, Mapping):
        what = f"a tuple of {len(item)}" if isinstance(item, tuple) else f"a {type(item).__name__}"
        raise BadItem(f"the item is {what}; yield a dict such as {{'image': ..., 'label': ...}}, or (image, label)")
    payloads = {field_name(role, item, source) for role in ROLES}
    return {str(name): value if name in payloads else _checked(value) for name, value in item.items()}


def _checked(value: Any) -> Any:
    """A value that can be written; an array of one value, as which some datasets give labels, is that value."""
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.item()
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and not is_text(text):
            raise BadItem(f"{text!r} cannot be written as UTF-8")
    return value


KIND = Kind(check, partition, rows)
