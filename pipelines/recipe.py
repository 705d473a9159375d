"""What shapes the bytes of a dataset besides its inputs: the settings, and the versions of the packages that make them.

It is stored as soon as a build starts, so that a later run can tell whether it may go on from there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelines.config import BuildConfig
from shards import __version__
from shards.errors import UsageError
from shards.files import write_atomically
from shards.manifest import Manifest

# The packages whose versions can change the bytes of a shard.
BYTE_MAKERS = ("simplejpeg", "opencv-python-headless", "pillow")
# Caps decide only what is rejected: a higher one leaves every record as it is.
_CAPS = frozenset(
    f"image.{cap}"
    for cap in ("max_file_mb", "max_megapixels", "max_frames", "max_aspect", "max_seconds", "max_memory_mb")
)


@dataclass(frozen=True)
class Recipe:
    """The settings that shape bytes, and who makes them."""

    settings: dict[str, Any]
    made_by: dict[str, str]

    @classmethod
    def of(cls, config: BuildConfig) -> "Recipe":
        """The recipe that a build follows here and now."""
        return cls(config.byte_shaping(), {"shardsmith": __version__} | {name: version(name) for name in BYTE_MAKERS})

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> "Recipe":
        """The recipe that a dataset was made by."""
        return cls(manifest.settings, manifest.made_by)

    @property
    def fingerprint(self) -> str:
        """The same for the same recipe."""
        return hashlib.sha256(json.dumps([self.settings, self.made_by], sort_keys=True).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Stores the recipe."""
        write_atomically(path, json.dumps(asdict(self), sort_keys=True).encode())

    @classmethod
    def load(cls, path: Path) -> "Recipe":
        """Reads a stored recipe."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Difference:
    """One setting, or one package, in which two recipes differ; in words."""

    name: str
    old: str
    new: str
    only_takes_more: bool = False  # a raised cap, or truncated files kept: no record changes by it

    @property
    def is_layout(self) -> bool:
        """Whether it says where inputs come from, or how large shards are.

        No record changes by that but with its input, which is then another one.
        """
        return self.name.startswith(("sources.", "shards."))

    def __str__(self) -> str:
        """Reads like `image.resize.size was 16 and is 17`."""
        return f"{self.name} was {self.old} and is {self.new}"


def compare(built: Recipe, asked: Recipe) -> list[Difference]:
    """Where two recipes differ."""
    old, new = dict(_flat(built.settings)), dict(_flat(asked.settings))
    found = [
        Difference(key, _shown(old, key), _shown(new, key), _only_takes_more(key, old.get(key), new.get(key)))
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    ]
    makers = sorted(built.made_by | asked.made_by)
    found += [
        Difference(name, built.made_by.get(name, "not there"), asked.made_by.get(name, "not there"))
        for name in makers
        if built.made_by.get(name) != asked.made_by.get(name)
    ]
    return found


def check_recipe(built: Recipe, asked: Recipe, *, output: str) -> list[Difference]:
    """Refuses to go on from a dataset that was built in another way; returns the differences that do no harm."""
    found = compare(built, asked)
    for each in found:
        if each.name in BYTE_MAKERS or each.name == "shardsmith":
            raise UsageError(
                f"{output} was built with {each.name} {each.old}, here is {each.new}, "
                "which may write other bytes; build again with --overwrite"
            )
        if not each.only_takes_more and not each.is_layout:
            raise UsageError(
                f"{each.name} is {each.new}, but {output} was built with {each.old}; "
                "use the settings of the build, or build again with --overwrite"
            )
    return found


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    inside = dict(enumerate(values)) if isinstance(values, list) else values
    if not isinstance(inside, Mapping) or not inside:
        yield prefix, values
        return
    for key, value in inside.items():
        yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))


def _only_takes_more(key: str, old: Any, new: Any) -> bool:
    return bool((key in _CAPS and new >= old) or (key == "image.truncated" and new == "keep"))


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not set"
