"""What identifies a run, in run.json: the settings that shape its weights, and its training data. No TensorFlow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shards.errors import ShardsmithError, UsageError
from shards.files import write_atomically
from trainer.config import TrainConfig
from trainer.learning.saved import CHECKPOINTS, list_checkpoints
from trainer.reading.source import Source

RUN = "run.json"


def check_run(config: TrainConfig, source: Source) -> dict[str, Any]:
    """What identifies this run; refuses an output directory that holds another one."""
    list_checkpoints(Path(config.output))  # refuses those of an older release
    split = config.splits.train
    data = {
        "digest": source.digest(split),
        "version": source.manifest.version,
        "examples": source.split(split).records,
    }
    run = {"settings": config.shaping(), "data": data}
    path = Path(config.output) / RUN
    if not path.is_file():
        return run
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
        changes, before = list(_differences(begun["settings"], run["settings"])), begun["data"]
        same_data = before["digest"] == data["digest"]
    except (ValueError, AttributeError, KeyError, TypeError, OSError) as error:
        raise ShardsmithError(f"{path} cannot be read: {error}; train into another output directory") from error
    if changes:
        raise UsageError(
            f"{config.output} holds a run with other settings: {'; '.join(changes)}; "
            "set them back to go on with it, or choose another output"
        )
    if not same_data:
        raise UsageError(_other_data(config, before, data))
    return run


def _other_data(config: TrainConfig, before: dict[str, Any], now: dict[str, Any]) -> str:
    found = list_checkpoints(Path(config.output))
    newest = found[0][1] if found else Path(config.output) / CHECKPOINTS / "step-N"
    return (
        f"{config.output} holds a run on other training data: it began with {_data(before)}, "
        f"{config.dataset} has {_data(now)}. A run cannot change its examples halfway; choose another output, "
        f"and to begin there with what was learnt, add --set model.initial={newest}"
    )


def _data(values: dict[str, Any]) -> str:
    return f"{values['examples']:,} examples (version {values['version']}, {values['digest'][:12]})"


def write_run(config: TrainConfig, run: dict[str, Any]) -> None:
    """Writes run.json."""
    try:
        Path(config.output).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(config.output) / RUN, (json.dumps(run, indent=1) + "\n").encode())
    except OSError as error:
        raise ShardsmithError(f"output {config.output} cannot be written: {error.strerror}") from error


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{prefix}{key}.")
        elif before != now:
            yield f"{prefix}{key} was {before!r}, is {now!r}"
