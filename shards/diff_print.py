"""What `diff` prints: short sections for a person, or one JSON object for a program."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from shards.diff import ABSENT, Change, Changes, Difference, Section, Side
from shards.diff_examples import KINDS, ExampleChange, ExampleChanges, FeatureChange, Kind
from shards.example import Values
from shards.samples import show_values

_TITLES: Mapping[Section, str] = {
    "settings": "settings",
    "made_by": "made by",
    "features": "features",
    "labels": "label ids",
    "counts": "counts",
    "classes": "examples of a class",
    "shards": "shards",
    "files": "files",
}
_LISTED_WHOLE: tuple[Section, ...] = ("settings", "made_by", "features")
_TOLD_BY_NAME: tuple[Section, ...] = ("shards", "files")  # a sha256 tells a person nothing
_CAUSES: tuple[Section, ...] = ("made_by", "features", "labels")
_LONGEST_VALUE = 100


def text_lines(difference: Difference, *, limit: int) -> Iterator[str]:
    """What differs, with at most `limit` examples, classes, shards, ... of each kind; the last line sums up."""
    if difference:
        yield _header(difference)
        for section, title in _TITLES.items():
            yield from _section_lines(section, title, difference.sections[section], limit=limit)
        for kind in KINDS:
            yield from _example_lines(kind, difference.examples, limit=limit)
    yield _summary(difference)


def _header(difference: Difference) -> str:
    plain = ", ".join(map(_show_change, difference.sections["dataset"]))
    return f"{difference.old.directory} -> {difference.new.directory}" + (f": {plain}" if plain else "")


def _section_lines(section: Section, title: str, changes: Changes, *, limit: int) -> Iterator[str]:
    if not changes:
        return
    if section == "classes":
        changes = tuple(sorted(changes, key=lambda change: -abs(change.new - change.old)))
    yield f"{title}:"
    lines = (f"  {_change_line(section, change)}" for change in changes)
    yield from _some(lines, len(changes), len(changes) if section in _LISTED_WHOLE else limit)


def _some(lines: Iterable[str], count: int, limit: int) -> Iterator[str]:
    yield from islice(lines, limit)
    if count > limit:
        yield f"  and {count - limit:,} more"


def _change_line(section: Section, change: Change) -> str:
    sign = "+ " if change.old is ABSENT else "- " if change.new is ABSENT else ""
    if section in _TOLD_BY_NAME:
        return f"{sign or '~ '}{change.name}"
    old, new = _show(change.old), _show(change.new)
    if section == "features" and sign:
        old, new = (_show_feature(value) for value in (change.old, change.new))
    return f"{sign}{change.name}: " + (f"{old} -> {new}" if not sign else new if change.old is ABSENT else old)


def _show_change(change: Change) -> str:
    return f"{change.name} {_show(change.old)} -> {_show(change.new)}"


def _show(value: Any) -> str:
    if value is ABSENT:
        return str(ABSENT.value)
    text = f"{value:,}" if type(value) is int else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _show_feature(entry: Any) -> str:
    return _show(entry) if entry is ABSENT else str(entry["type"])


def _example_lines(kind: Kind, examples: ExampleChanges, *, limit: int) -> Iterator[str]:
    count = len(examples.pairs[kind])
    if not count:
        return
    splits = ", ".join(f"{_show_splits(*splits)} {n:,}" for splits, n in examples.count_splits(kind).items())
    yield f"{kind}: {_several(count, 'example')} ({splits})"
    yield from _some((f"  {_show_example(example)}" for example in examples.describe(kind)), count, limit)


def _show_example(example: ExampleChange) -> str:
    line = f"{_show_splits(example.old_split, example.new_split)}  {_show_key(example.key)}"
    changes = ", ".join(map(_show_feature_change, example.features))
    if not changes and example.old_split == example.new_split:
        changes = "the same values, encoded otherwise"
    return f"{line}: {changes}" if changes else line


def _show_splits(old: str | None, new: str | None) -> str:
    return f"{old} -> {new}" if old and new and old != new else str(old or new)


def _show_key(key: str) -> str:
    text = key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if text.isprintable() else repr(text)


def _show_feature_change(change: FeatureChange) -> str:
    old, new = _show_values(change.old), _show_values(change.new)
    return f"{change.name} {old} -> {'other ' if old == new else ''}{new}"


def _show_values(values: Values | None) -> str:
    return str(ABSENT.value) if values is None else show_values(values) or "(empty)"


def _summary(difference: Difference) -> str:
    if not difference:
        size = f"{_several(difference.old.examples, 'example')} in {_several(difference.old.splits, 'split')}"
        return f"same: {size}, settings and labels"
    counts = ", ".join(f"{len(difference.examples.pairs[kind]):,} {kind}" for kind in KINDS)
    return "; ".join([f"different: {counts}", *_reasons(difference)])


def _reasons(difference: Difference) -> Iterator[str]:
    """The settings that differ, and what else does not follow from other examples."""
    sections = difference.sections
    shown = [_show_change(change) for change in (*sections["dataset"], *sections["settings"])]
    if shown:
        yield ", ".join(shown[:3]) + (f" and {len(shown) - 3:,} more" if len(shown) > 3 else "")
    others = [title for section, title in _TITLES.items() if section in _CAUSES and sections[section]]
    if not (others or shown or len(difference.examples)):
        others = [title for section, title in _TITLES.items() if sections[section]]
    if others:
        yield f"also {', '.join(others)}"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def json_pieces(difference: Difference) -> Iterator[str]:
    """The text of one JSON object with all there is to tell, in pieces, so that it need not fit in memory.

    Lists have an item per line. A value that one side does not have is left out. What an example's features hold is
    told in the words that a person is shown. Bytes of keys that are not UTF-8 are surrogates (`surrogateescape`).
    """
    examples = difference.examples
    values: dict[str, Any] = {"same": not difference, "old": _side(difference.old), "new": _side(difference.new)}
    values |= {section: map(_change_values, changes) for section, changes in difference.sections.items()}
    values["examples"] = {kind: _split_counts(examples, kind) for kind in KINDS}
    values |= {kind: map(_example_values, examples.describe(kind)) for kind in KINDS}
    for number, (name, value) in enumerate(values.items()):
        yield f"{',' if number else '{'}\n {json.dumps(name)}: "
        yield from _list_pieces(value) if isinstance(value, Iterator) else [json.dumps(value)]
    yield "\n}\n"


def _list_pieces(items: Iterator[Any]) -> Iterator[str]:
    yield "["
    for number, item in enumerate(items):
        yield f"{',' if number else ''}\n  {json.dumps(item)}"
    yield "]"


def _side(side: Side) -> dict[str, Any]:
    return {"directory": str(side.directory), "examples": side.examples, "splits": side.splits}


def _change_values(change: Change) -> dict[str, Any]:
    values = {"name": change.name, "old": change.old, "new": change.new}
    return {name: value for name, value in values.items() if value is not ABSENT}  # None is a value of its own: null


def _split_counts(examples: ExampleChanges, kind: Kind) -> list[dict[str, Any]]:
    counts = examples.count_splits(kind).items()
    return [_without_none(old_split=old, new_split=new, examples=count) for (old, new), count in counts]


def _example_values(example: ExampleChange) -> dict[str, Any]:
    features = [_feature_values(change) for change in example.features] or None
    return _without_none(key=example.key, old_split=example.old_split, new_split=example.new_split, features=features)


def _feature_values(change: FeatureChange) -> dict[str, Any]:
    old, new = (None if values is None else show_values(values) for values in (change.old, change.new))
    return _without_none(name=change.name, old=old, new=new)


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
