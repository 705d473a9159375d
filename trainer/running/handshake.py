"""What each worker tells the others before they train together, and why they refuse one that does not match."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import shards
import trainer
from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.reading.source import Source
from trainer.running.cluster import Cluster

Card = dict[str, dict[str, Any]]
MOST_TOLD = 5
REMEDIES = {
    "settings": "start all workers with the same config and flags",
    "data": "give all workers the same dataset",
    "software": "install the same versions on all of them",
    "cluster": "give all workers the same addresses in TF_CONFIG",
}


def make_card(
    config: TrainConfig, source: Source, cluster: Cluster, *, splits: Iterable[str], flags: Mapping[str, Any]
) -> Card:
    """Everything that must be equal on all workers, by kind; the kinds are those of REMEDIES."""
    # Where things lie, and what is kept near or read ahead, may differ from machine to machine.
    own = {"prefetch", "cache", "cache_folder", "cache_gb"}
    settings = config.model_dump(mode="json", exclude={"dataset": True, "output": True, "input": own})
    return {
        "settings": dict(_flat(settings)) | dict(flags),
        "data": {split: source.digest(split) for split in sorted(splits)},
        "software": _software(config.model.name or ""),
        "cluster": {"addresses": ", ".join(cluster.addresses)},
    }


def check_cards(cards: Sequence[str]) -> None:
    """Refuses workers that differ from worker 0, with the differences named."""
    chief, *others = (json.loads(card) for card in cards)
    found = [(kind, text) for index, card in enumerate(others, 1) for kind, text in _differences(chief, card, index)]
    if not found:
        return
    told = [text for _, text in found[:MOST_TOLD]]
    if len(found) > MOST_TOLD:
        told.append(f"and {len(found) - MOST_TOLD} more")
    kinds = {kind for kind, _ in found}
    remedy = ", and ".join(text for kind, text in REMEDIES.items() if kind in kinds)
    raise UsageError(f"the workers do not match: {'; '.join(told)}; {remedy}")


def code_digest(*roots: Path) -> str:
    """A fingerprint of the Python files under some directories, or of single files, wherever they lie."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            name = path.relative_to(root.parent).as_posix()
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _software(model: str) -> dict[str, str]:
    packages = [Path(package.__file__).parent for package in (shards, trainer) if package.__file__]
    found = {
        "shardsmith": shards.__version__,
        "shardsmith's code": code_digest(*packages),
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
    }
    module, has_function, _ = model.partition(":")
    spec = find_spec(module) if has_function else None
    if spec and spec.origin:
        found[f"the code of {module}"] = code_digest(Path(spec.origin))
    return found


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _differences(chief: Card, card: Card, index: int) -> Iterator[tuple[str, str]]:
    for kind in REMEDIES:
        ours, theirs = chief[kind], card[kind]
        for name in sorted(ours.keys() | theirs.keys()):
            mine, other = (_show(side, name) for side in (ours, theirs))
            if mine != other:
                yield kind, _tell(kind, name, index=index, mine=mine, other=other)


def _show(side: Mapping[str, Any], name: str) -> str:
    if name not in side:
        return "nothing"
    return side[name] if isinstance(side[name], str) else json.dumps(side[name])


def _tell(kind: str, name: str, *, index: int, mine: str, other: str) -> str:
    if kind == "data":
        return f"worker {index} reads other data in split {name!r} than worker 0"
    return f"worker {index} has {name} {other}, worker 0 {mine}"
