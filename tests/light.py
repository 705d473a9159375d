"""Builds that are quick because tf.Transform stands aside, and what is done to their inputs and outputs."""

import os
from collections import Counter
from pathlib import Path

from conftest import InProcess

from pipelines.analysis.analyst import Analysis, Analyst
from pipelines.build import build
from pipelines.config import BuildConfig
from pipelines.runner import parse_beam_options
from pipelines.update import Policy, append, retry
from pipelines.writing.facts import read_facts
from shards.files import hash_file
from shards.manifest import Manifest


class Reader(Analyst):
    """Stands in for tf.Transform, which takes most of the time of a small build: keeps what it would analyse.

    So every file must be equal, and tf.Transform sees the same.
    """

    def run(self, analysis: Analysis) -> dict[str, int]:
        rows = [row for path in analysis.files for batch in read_facts(str(path)) for row in batch.to_pylist()]
        (analysis.output / "transform_fn").mkdir()
        (analysis.output / "transform_fn" / "facts").write_text(repr(rows))
        return dict(Counter(name.decode() for row in rows for name in row["label_name"]))


LIGHT = Reader(InProcess())
LOCAL = parse_beam_options([], ours=())


def run_build(config: BuildConfig, analyst: Analyst = LIGHT, *, overwrite: bool = False) -> Manifest:
    return build(config, options=LOCAL, analyst=analyst, overwrite=overwrite, started=0)


def run_retry(config: BuildConfig, analyst: Analyst = LIGHT, **flags: bool) -> Manifest:
    return retry(config, options=LOCAL, analyst=analyst, started=0, policy=Policy(**flags))


def run_append(config: BuildConfig, analyst: Analyst = LIGHT, **flags: bool) -> Manifest:
    return append(config, options=LOCAL, analyst=analyst, started=0, policy=Policy(**flags))


def files_of(root: Path) -> dict[str, str]:
    """The sha256 of every file."""
    return {path.relative_to(root).as_posix(): hash_file(path) for path in root.rglob("*") if path.is_file()}


def identities_of(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of modification of every file and folder: who is the same has not been touched."""
    found = {path: path.stat() for path in (root, *root.rglob("*"))}
    return {path.relative_to(root).as_posix(): (each.st_ino, each.st_mtime_ns) for path, each in found.items()}


def images(source: Path) -> list[Path]:
    """Every file of a source."""
    return sorted(path for path in source.rglob("*") if path.is_file())


def break_files(paths: list[Path]) -> dict[Path, bytes]:
    """Cuts files off and returns what they were."""
    whole = {path: path.read_bytes() for path in paths}
    for path, content in whole.items():
        path.write_bytes(content[: len(content) // 2])
    return whole


def hollow_out(path: Path) -> None:
    """Leaves a file's size and times and takes its content: whoever opens it gets other bytes."""
    found = path.stat()
    path.write_bytes(b"")
    os.truncate(path, found.st_size)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
