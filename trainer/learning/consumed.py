"""What a run really consumed: the keys of each step, written by each worker as it takes the step.

A batch carries, for each record, its ordinal (as the order says) and a fingerprint of the key that was parsed from the
record's own bytes. The recorder looks the ordinal's key up in the shard and holds it against the fingerprint, so that
what it writes is what was read.

OUTPUT/keys/worker-I-of-N.jsonl has a line per step. Steps that are done again after a restart are written again;
`read_consumed` counts each step once, and refuses a step that was not the same each time.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.reading.dataset import fingerprint
from trainer.reading.keys import read_keys
from trainer.reading.source import Source
from trainer.running.strategy import Workplace

KEYS = "keys"
COLUMNS = ("ordinal", "fingerprint", "weight")


class Recorder:
    """Writes the keys of this worker's part of each step."""

    def __init__(self, config: TrainConfig, source: Source, workplace: Workplace) -> None:
        """Opens this worker's file; goes on behind what it holds."""
        cluster, strategy = workplace.cluster, workplace.strategy
        self._strategy, self._split = strategy, source.split(config.splits.train)
        self._who = {"worker": cluster.index, "workers": cluster.workers}
        rows = config.global_batch // strategy.num_replicas_in_sync
        with strategy.scope():
            self._noted = tf.Variable(
                tf.zeros([rows, len(COLUMNS)], tf.int64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.NONE,
            )
        path = Path(config.output) / KEYS / f"worker-{cluster.index}-of-{cluster.workers}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ShardsmithError(f"{path} cannot be written: {error.strerror}") from error
        if self._stream.tell():
            self._stream.write("\n")  # ends a line that a crash may have cut off

    def note(self, batch: dict[str, Any]) -> None:
        """Remembers what a replica takes its step with; called inside of the step."""
        self._noted.assign(tf.stack([tf.cast(batch[name], tf.int64) for name in COLUMNS], axis=1))

    def write(self, step: int) -> None:
        """Writes the keys of the step that was just done, without those that only filled the batch up."""
        parts = [part.numpy() for part in self._strategy.experimental_local_results(self._noted)]
        ordinals, fingerprints, weights = np.concatenate(parts).T
        keys = read_keys(self._split, ordinals[weights > 0])
        self._check(keys, ordinals[weights > 0], fingerprints[weights > 0])
        self._stream.write(json.dumps({"step": step, **self._who, "keys": keys}, ensure_ascii=False) + "\n")
        self._stream.flush()

    def _check(self, keys: list[str], ordinals: Any, read: Any) -> None:
        wrong = np.flatnonzero(fingerprint(tf.constant(keys, tf.string, [len(keys)])).numpy() != read)
        if len(wrong):
            raise ShardsmithError(
                f"record {ordinals[wrong[0]]} of split {self._split.name!r} was read with another key than "
                f"{keys[wrong[0]]!r}, which its shard holds; find the damage with: python -m shards verify"
            )

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


@dataclass(frozen=True)
class _Part:
    """What one worker of `workers` wrote about a step."""

    worker: int
    workers: int
    keys: tuple[str, ...]


def read_consumed(output: Path) -> dict[int, list[str]]:
    """The keys of each step, sorted, each step once however often it was done.

    A step counts if it was written by all workers that took part in it. Whatever was written about a step, on however
    many workers, must agree: else a restart did not read what it should have, and this fails.
    """
    steps: dict[int, list[_Part]] = defaultdict(list)
    for path in sorted((output / KEYS).glob("worker-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if (values := _parse(line)) is not None:
                part = _Part(values["worker"], values["workers"], tuple(values["keys"]))
                steps[values["step"]].append(part)
    merged = {step: _merge(step, parts) for step, parts in sorted(steps.items())}
    return {step: keys for step, keys in merged.items() if keys is not None}


def _parse(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line) if line else None
    except ValueError:
        return None  # cut off by a crash


def _merge(step: int, parts: list[_Part]) -> list[str] | None:
    """The keys of a step; None when no attempt at it was written by all of its workers."""
    attempts: dict[int, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for part in parts:
        if attempts[part.workers].setdefault(part.worker, part.keys) != part.keys:
            raise ShardsmithError(f"worker {part.worker} of {part.workers} did step {step} twice, with other examples")
    whole = [
        sorted(key for keys in found.values() for key in keys)
        for workers, found in attempts.items()
        if len(found) == workers
    ]
    if any(keys != whole[0] for keys in whole):
        raise ShardsmithError(f"step {step} was done with other examples on another number of workers")
    return whole[0] if whole else None
