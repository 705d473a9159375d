"""Strict settings: YAML and `key=value` overrides become one frozen object, or an error that names key and remedy."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from shards.errors import UsageError


class Settings(BaseModel):
    """Base of every settings class: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=Settings)


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: a key that is given twice is a mistake, and 1e-3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for name, count in Counter(names).items():
            if count > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML follows, wants 1.0e-3.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_settings(kind: type[S], path: str | Path | None, overrides: Mapping[str, Any]) -> S:
    """Reads `path` (if any), applies dotted-key overrides and validates the result as `kind`."""
    values = read_yaml(path) if path is not None else {}
    for key, value in overrides.items():
        set_dotted(values, key, value)
    return validate(kind, values, place=str(path) if path is not None else "the command line")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Returns the mapping that a YAML file holds."""
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"config {path} is not valid YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"config {path} must be a mapping of keys to values, not a {type(values).__name__}")
    return values


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Turns `['shards.target_mb=64']` into `{'shards.target_mb': 64}`; values are YAML."""
    overrides = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise UsageError(f"--set needs key=value, got {assignment!r}; for example --set shards.target_mb=64")
        try:
            overrides[key] = yaml.load(text, _Loader)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {key}: {text!r} is not a YAML value") from error
    return overrides


def set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets `a.b.c` inside nested mappings, making the mappings on the way."""
    *parents, last = key.split(".")
    for parent in parents:
        child = values.setdefault(parent, {})
        if not isinstance(child, dict):
            # A short form such as `resize: center_crop:256` gives way to the explicit key that was asked for.
            child = values[parent] = {}
        values = child
    values[last] = value


def validate(kind: type[S], values: Mapping[str, Any], *, place: str) -> S:
    """Validates `values` strictly: 3 is an int and "3" is not; every problem is listed in one error."""
    try:
        text = json.dumps(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{place}: {error}; quote dates and other unusual values") from error
    try:
        # Strict JSON mode is what we mean by strict YAML: lists may fill tuples, but text never becomes a number.
        return kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        given = json.loads(text)
        problems = "; ".join(dict.fromkeys(_describe(kind, given, dict(problem)) for problem in error.errors()))
        raise UsageError(f"{place}: {problems}") from error


def _describe(kind: type[BaseModel], given: Any, problem: dict[str, Any]) -> str:
    location = _location(given, problem)
    if problem["type"] == "extra_forbidden":
        *parents, key = location
        return _unknown_key(key, parents, _fields_at(kind, parents))
    if problem["type"] == "missing":
        return f"{'.'.join(location)} is required"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(location)}: {message} (got {problem['input']!r})" if location else message


def _location(given: Any, problem: dict[str, Any]) -> list[str]:
    """The keys that lead to a problem; pydantic also names the branches of a union it tried, which nobody wrote."""
    keys = []
    for part in problem["loc"]:
        inside = part in given if isinstance(given, dict) else isinstance(given, list) and isinstance(part, int)
        if inside:
            given = given[part]
        if inside or problem["type"] == "missing":
            keys.append(str(part))
    return keys


def _unknown_key(key: str, parents: list[str], known: list[str]) -> str:
    where = f" in {'.'.join(parents)}" if parents else ""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {key!r}{where}; {hint}"


def _fields_at(kind: type[BaseModel], parents: list[str]) -> list[str]:
    for parent in parents:
        field = kind.model_fields.get(parent)
        # An unknown parent is a key of a mapping of settings: the value type of the mapping is already in `kind`.
        kind = _settings_inside(field.annotation) or kind if field is not None else kind
    return sorted(kind.model_fields)


def _settings_inside(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _settings_inside(argument))), None)
