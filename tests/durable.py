"""Light builds in the test's own process, for tests that need many of them."""

from collections import Counter
from pathlib import Path
from typing import Any

from conftest import InProcess

from pipelines.analyst import Analysis, Analyst
from pipelines.build import build
from pipelines.config import BuildConfig
from pipelines.facts import read_facts
from pipelines.runner import parse_beam_options
from pipelines.update import append, retry
from shards.files import hash_file
from shards.manifest import Manifest

SETTINGS: dict[str, Any] = {
    "splits": {"fractions": {"train": 0.7, "test": 0.3}},
    "image": {"resize": "exact:16", "encode": {"format": "png"}},
    "shards": {"target_mb": 0.006},
}


class Reader(Analyst):
    """Stands in for tf.Transform, which takes most of the time of a small build: keeps what it would analyse."""

    def run(self, analysis: Analysis) -> dict[str, int]:
        rows = [row for path in analysis.files for batch in read_facts(str(path)) for row in batch.to_pylist()]
        (analysis.output / "transform_fn").mkdir()
        (analysis.output / "transform_fn" / "facts").write_text(repr(rows))
        return dict(Counter(name.decode() for row in rows for name in row["label_name"]))


LIGHT = Reader(InProcess())
LOCAL = parse_beam_options([], ours=())


def run_build(config: BuildConfig, *, overwrite: bool = False) -> Manifest:
    return build(config, options=LOCAL, analyst=LIGHT, overwrite=overwrite, started=0)


def run_append(config: BuildConfig) -> Manifest:
    return append(config, options=LOCAL, analyst=LIGHT, started=0)


def run_retry(config: BuildConfig) -> Manifest:
    return retry(config, options=LOCAL, analyst=LIGHT, started=0)


def files_of(root: Path) -> dict[str, str]:
    """The sha256 of every file, by its relative path."""
    return {path.relative_to(root).as_posix(): hash_file(path) for path in root.rglob("*") if path.is_file()}


def identities_of(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of modification of every file and folder: who is the same has not been touched."""
    found = {path: path.stat() for path in (root, *root.rglob("*"))}
    return {path.relative_to(root).as_posix(): (each.st_ino, each.st_mtime_ns) for path, each in found.items()}


def pictures_of(source: Path) -> list[Path]:
    """Every input file, in order."""
    return sorted(path for path in source.rglob("*") if path.is_file())
