"""What differs between two datasets: what their manifests say, and which examples they hold."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from shards.diff_examples import ExampleChanges, match_examples, unshared_shards
from shards.diff_table import Table, Track, damaged
from shards.errors import BAD_USAGE, ShardsmithError
from shards.manifest import Counts, FeatureEntry, Manifest, read_manifest

DIFFERENT = 1
Name = tuple[str, ...]  # the keys that lead to a value
# Compared on their own; or a digest of others; or what came before, or a measure of it all.
_NOT_PLAIN = {"settings", "made_by", "features", "labels", "counts", "splits", "files"}
_NOT_CONTENT = {"format_version", "fingerprint", "history", "retired", "shuffle"}


class DiffTrouble(ShardsmithError):
    """Nobody knows whether the datasets differ; as with `diff`, that is neither 0 (same) nor 1 (different)."""

    exit_code = BAD_USAGE


class Absent(Enum):
    """Stands for the value that one of the datasets does not have."""

    ABSENT = "(not set)"


ABSENT = Absent.ABSENT


@dataclass(frozen=True)
class Change:
    """A value that differs; ABSENT as the old one means that it was added, as the new one that it was removed."""

    name: str
    old: Any
    new: Any


Changes = tuple[Change, ...]


Section = Literal["dataset", "settings", "made_by", "features", "labels", "counts", "classes", "shards", "files"]


@dataclass(frozen=True)
class Side:
    """One of the two datasets."""

    directory: Path
    examples: int
    splits: int


@dataclass(frozen=True)
class Difference:
    """All that differs. Labels have other ids; classes other numbers of examples; shards and files another sha256."""

    old: Side
    new: Side
    sections: Mapping[Section, Changes]
    examples: ExampleChanges

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return any(self.sections.values()) or len(self.examples) > 0


def compare_datasets(old: Path, new: Path, *, track: Track = iter) -> Difference:
    """Reads what must be read of both datasets; the shards of each pass through `track` on the way."""
    before, after = read_manifest(old), read_manifest(new)
    _check_sizes(old, before)
    _check_sizes(new, after)
    sections = compare_manifests(before, after)
    shards = unshared_shards(before, after)
    examples = match_examples(Table(old, shards[0], track=track), Table(new, shards[1], track=track))
    return Difference(_side(old, before), _side(new, after), sections, examples)


def compare_manifests(old: Manifest, new: Manifest) -> dict[Section, Changes]:
    """What differs besides the examples."""
    return {
        "dataset": compare(_plain_values(old), _plain_values(new)),
        "settings": compare(flatten(old.settings), flatten(new.settings)),
        "made_by": compare(flatten(old.made_by), flatten(new.made_by)),
        "features": _compare_features(old.features, new.features),
        "labels": compare(_ids(old), _ids(new)),
        "counts": compare(flatten(_nest_counts(old.counts)), flatten(_nest_counts(new.counts)), missing=0),
        "classes": compare(_class_counts(old), _class_counts(new), missing=0),
        "shards": compare(_shard_hashes(old), _shard_hashes(new)),
        "files": compare(_file_hashes(old), _file_hashes(new)),
    }


def _side(directory: Path, manifest: Manifest) -> Side:
    return Side(directory, sum(split.records for split in manifest.splits), len(manifest.splits))


def _check_sizes(directory: Path, manifest: Manifest) -> None:
    """A shard that is not read must be there at least, or datasets would be the same of which one is gone."""
    for shard in (shard for split in manifest.splits for shard in split.shards):
        try:
            size = (directory / shard.path).stat().st_size
        except OSError as error:
            raise damaged(directory, shard.path, error.strerror) from error
        if size != shard.bytes:
            raise damaged(directory, shard.path, f"has {size:,} bytes, the manifest says {shard.bytes:,}")


def flatten(values: Mapping[str, Any], name: Name = ()) -> dict[Name, Any]:
    """The values inside nested mappings, by the keys that lead to them; an empty mapping has none."""
    flat: dict[Name, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, (*name, key)) if isinstance(value, Mapping) else {(*name, key): value}
    return flat


def compare(old: Mapping[Name, Any], new: Mapping[Name, Any], *, missing: Any = ABSENT) -> Changes:
    """The values that differ, in the order of the old ones and then of the new."""
    both = ((name, old.get(name, missing), new.get(name, missing)) for name in dict.fromkeys([*old, *new]))
    return tuple(Change(".".join(name), before, after) for name, before, after in both if _differ(before, after))


def _differ(old: Any, new: Any) -> bool:
    if ABSENT in (old, new):
        return True
    return json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True)  # to Python, true is 1


def _plain_values(manifest: Manifest) -> dict[Name, Any]:
    plain = flatten(manifest.model_dump(mode="json", exclude=_NOT_PLAIN | _NOT_CONTENT))
    return plain | {("splits",): [split.name for split in manifest.splits]}


def _compare_features(old: Iterable[FeatureEntry], new: Iterable[FeatureEntry]) -> Changes:
    """Whole features that were added or removed, and what changed of the others."""
    before: dict[Name, Any] = {(entry.name,): entry.model_dump(exclude={"name"}) for entry in old}
    after: dict[Name, Any] = {(entry.name,): entry.model_dump(exclude={"name"}) for entry in new}
    changes: list[Change] = []
    for change in compare(before, after):
        if ABSENT in (change.old, change.new):
            changes.append(change)
        else:
            changes += compare(flatten(change.old, (change.name,)), flatten(change.new, (change.name,)))
    return tuple(changes)


def _ids(manifest: Manifest) -> dict[Name, int]:
    return {(label,): number for number, label in enumerate(manifest.labels)}


def _nest_counts(counts: Counts) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    for entry in counts.sources:
        sources.setdefault(entry.source, {})[entry.split] = entry.model_dump(exclude={"source", "split"})
    return counts.model_dump(exclude={"sources"}) | {"sources": sources}


def _class_counts(manifest: Manifest) -> dict[Name, int]:
    return {(split.name, label): count for split in manifest.splits for label, count in split.labels.items()}


def _shard_hashes(manifest: Manifest) -> dict[Name, str]:
    return {(shard.path,): shard.sha256 for split in manifest.splits for shard in split.shards}


def _file_hashes(manifest: Manifest) -> dict[Name, str]:
    return {(entry.path,): entry.sha256 for entry in manifest.files}
