"""Checkpoints on disk: whole or not there, and known to be sound. No TensorFlow.

OUTPUT/checkpoints/step-N/ appears under its name when it is complete. `saved.json` in it lists the other files with
their sizes and sha256, and holds the progress of the run.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shards.errors import ShardsmithError, UsageError
from shards.files import TEMPORARY_SUFFIX, hash_file, write_atomically
from trainer.config import TrainConfig
from trainer.learning.progress import Progress

CHECKPOINTS = "checkpoints"
SAVED = "saved.json"
VARIABLES = "variables"  # the prefix of TensorFlow's files in a checkpoint
FORMAT = 1
_NAME = re.compile(r"step-(\d+)", re.ASCII)


class DamagedCheckpoint(Exception):
    """A checkpoint that is not as it was written; the message says in what way."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint and what its saved.json says."""

    path: Path
    step: int
    progress: Progress
    digest: str  # of its list of files: equal on workers that see the same checkpoint


def list_checkpoints(output: Path) -> list[tuple[int, Path]]:
    """The (step, path) of every checkpoint of a run, sound or not, the newest first."""
    directory = output / CHECKPOINTS
    if not directory.is_dir():
        return []
    if (directory / "checkpoint").is_file() or any(directory.glob("step-*.index")):
        raise UsageError(
            f"{output} holds a run of an older shardsmith, whose checkpoints this one cannot read; "
            "go on with it in the release that began it, or choose another output"
        )
    found = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(((int(match[1]), path) for match, path in found), reverse=True)


def read_saved(path: Path, *, thorough: bool = True) -> Saved:
    """What a checkpoint says of itself; raises DamagedCheckpoint unless its files agree, bit by bit if `thorough`."""
    try:
        values = json.loads((path / SAVED).read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']} is of another release, this one reads {FORMAT}")
        _check_files(path, values["files"], thorough=thorough)
        digest = hashlib.sha256(json.dumps(values["files"], sort_keys=True).encode()).hexdigest()
        return Saved(path, int(values["step"]), Progress.from_dict(values["progress"]), digest)
    except OSError as error:
        raise DamagedCheckpoint(f"{Path(error.filename or path).name}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedCheckpoint(f"{SAVED} cannot be used: {error}") from error


def _check_files(path: Path, files: dict[str, dict[str, Any]], *, thorough: bool) -> None:
    for name, entry in files.items():
        size = (path / name).stat().st_size
        if size != entry["bytes"]:
            raise DamagedCheckpoint(f"{name} has {size} bytes, {SAVED} says {entry['bytes']}")
        if thorough and hash_file(path / name) != entry["sha256"]:
            raise DamagedCheckpoint(f"{name} is not what was written: its sha256 differs")


def newest(output: Path) -> Saved | None:
    """The newest sound checkpoint of a run, with a warning about any newer one; None when there are none at all."""
    found = list_checkpoints(output)
    for _, path in found:
        try:
            return read_saved(path)
        except DamagedCheckpoint as damage:
            print(f"warning: checkpoint {path} is damaged and left out: {damage}", file=sys.stderr, flush=True)
    if found:
        raise ShardsmithError(
            f"no checkpoint in {output / CHECKPOINTS} is sound; remove that directory to train from the start"
        )
    return None


def find_checkpoint(config: TrainConfig, wanted: str | None) -> str:
    """The checkpoint asked for: `newest` (or None), `best`, a step or a path; an error when there is none."""
    output = config.output
    if wanted in (None, "newest", "best"):
        found = newest(Path(output))
        if found is None:
            raise ShardsmithError(f"{output} has no checkpoint; train first: python -m trainer train CONFIG")
        return str(_find_best(found) if wanted == "best" else found.path)
    path = Path(output) / CHECKPOINTS / f"step-{wanted}" if str(wanted).isdecimal() else Path(str(wanted))
    if not (path / SAVED).is_file():
        raise UsageError(
            f"no checkpoint at {path}: give newest, best, a step, or a path such as {output}/{CHECKPOINTS}/step-100"
        )
    return str(_sound(path))


def _find_best(latest: Saved) -> Path:
    if latest.progress.best is None:
        raise UsageError("no checkpoint is the best one yet: nothing was evaluated; give newest, a step or a path")
    path = latest.path.with_name(f"step-{latest.progress.best.step}")
    if not path.is_dir():
        raise UsageError(f"the best checkpoint, {path}, was not kept; set checkpoint.best, or give newest")
    return _sound(path)


def _sound(path: Path) -> Path:
    try:
        return read_saved(path).path
    except DamagedCheckpoint as damage:
        raise ShardsmithError(f"checkpoint {path} is damaged: {damage}; give another one") from damage


@contextmanager
def new_checkpoint(output: Path, step: int, progress: Progress) -> Iterator[Path]:
    """A directory to write files into that becomes checkpoint step-`step` when the block ends well."""
    target = output / CHECKPOINTS / f"step-{step}"
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        files = {path.name: _describe(path) for path in sorted(temporary.iterdir())}
        values = {"format": FORMAT, "step": step, "files": files, "progress": progress.as_dict()}
        write_atomically(temporary / SAVED, _json(values))
        if target.exists():  # from before a restart, perhaps damaged
            target.rename(old := temporary.with_name(f".old{temporary.name}"))
            shutil.rmtree(old)
        temporary.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def amend(output: Path, step: int, progress: Progress) -> None:
    """Replaces the progress in a checkpoint that is there already."""
    path = output / CHECKPOINTS / f"step-{step}" / SAVED
    values = json.loads(path.read_text(encoding="utf-8"))
    write_atomically(path, _json(values | {"progress": progress.as_dict()}))


def prune(output: Path, *, step: int, keep: int, best: int | None) -> None:
    """Removes all but the newest `keep` checkpoints up to `step` and the best one, and what crashes left behind."""
    past = [(at, path) for at, path in list_checkpoints(output) if at <= step]
    for at, path in past[keep:]:
        if at != best:
            shutil.rmtree(path, ignore_errors=True)
    for path in (output / CHECKPOINTS).glob(f".*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def _describe(path: Path) -> dict[str, Any]:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()
