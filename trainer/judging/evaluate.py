"""Judges a model on a split: each example exactly once, with the same result on any number of workers.

Batch b of a split always holds the same records, so that an example is computed in the same company everywhere. Every
worker computes its own batches and counts on its own; only when all are done, the tallies are exchanged.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from shards.errors import ShardsmithError
from trainer.config import TrainConfig
from trainer.judging.judges import Seen, make_judge
from trainer.judging.results import Evaluation
from trainer.judging.tally import NOTHING, Tally, pack, unpack
from trainer.learning.checkpoints import agree_on_checkpoint
from trainer.learning.faults import explained
from trainer.learning.saved import find_checkpoint
from trainer.learning.state import State, build_state, restore
from trainer.reading.dataset import Share, evaluation_dataset
from trainer.reading.source import Source
from trainer.running.strategy import Workplace

Tensor = Any
Batch = dict[str, Tensor]
AT_ONCE = 256  # tallies that are merged in one go
PACE = 8  # rounds of batches after which workers look whether all are there and none has to leave


class CutShort(Exception):
    """A worker has been asked to end in the middle of a pass."""


class Evaluator:
    """Evaluates a model on one split as often as asked, over one long-lived iterator; keeps the `worst` mistakes."""

    def __init__(
        self, config: TrainConfig, source: Source, workplace: Workplace, *, state: State, split: str, worst: int = 0
    ) -> None:
        """Prepares the input; reading starts with the first `evaluate`."""
        self._workplace, self._state, self._source, self._split = workplace, state, source, source.split(split)
        self._judge, self._batch = make_judge(source, worst=worst), config.evaluation.batch
        workers = workplace.cluster.workers
        share = Share(worker=workplace.cluster.index, workers=workers, batch=self._batch, threads=workplace.threads)
        self._batches = iter(evaluation_dataset(config, source, share, split=split))
        self._steps = -(-self._split.records // (self._batch * workers))  # of this worker, in one pass

    def evaluate(self, step: int) -> Evaluation:
        """One pass over the split with the weights after `step`; CutShort on all workers when one must end."""
        with explained(self._source):
            tally = self._exchange(self._one_pass())
        if not tally.sums:
            raise ShardsmithError(f"no record of split {self._split.name!r} could be read, so there is no result")
        result = self._judge.summarise(tally, split=self._split.name, step=step)
        return replace(result, skipped=self._split.records - result.examples)

    def _exchange(self, tally: Tally) -> Tally:
        """The tally of all workers together."""
        if self._workplace.cluster.workers == 1:
            return tally
        packed = self._workplace.gather_bytes(pack(tally))
        return self._judge.merge([unpack(data) for data in packed])

    def _one_pass(self) -> Tally:
        """What this worker's batches amount to."""
        tally = NOTHING
        tallies = (self._judge.count(seen) for seen in map(self._look, self._computed()) if len(seen.ordinals))
        while some := list(islice(tallies, AT_ONCE)):
            tally = self._judge.merge([tally, *some])
        return tally

    def _look(self, computed: tuple[Batch, Tensor]) -> Seen:
        """The examples of a batch that count, in NumPy."""
        batch, outputs = computed
        ordinals, counts = batch["ordinal"].numpy(), batch["weight"].numpy() > 0
        targets: npt.NDArray[Any] = batch[self._state.task.feature].numpy()
        return Seen(
            number=int(ordinals[0]) // self._batch,
            outputs=outputs.numpy()[counts],
            targets=targets[counts],
            ordinals=ordinals[counts].astype(np.int64),
        )

    def _computed(self) -> Iterator[tuple[Batch, Tensor]]:
        """One pass over this worker's batches with the network's outputs, as many at once as it has replicas."""
        strategy = self._workplace.strategy
        replicas = strategy.num_replicas_in_sync // self._workplace.cluster.workers
        batches = islice(self._batches, self._steps)
        for number in count():
            if number % PACE == 0 and self._workplace.must_leave():
                raise CutShort
            if not (some := list(islice(batches, replicas))):
                return
            outputs = strategy.experimental_local_results(self._outputs(self._deal(some, replicas)))
            yield from zip(some, outputs, strict=False)  # replicas without a batch of their own repeat the last

    def _deal(self, batches: list[Batch], replicas: int) -> Any:
        """A batch for each replica of this worker."""
        return self._workplace.strategy.experimental_distribute_values_from_function(
            lambda context: batches[min(context.replica_id_in_sync_group % replicas, len(batches) - 1)]
        )

    @tf.function
    def _outputs(self, batch: Any) -> Tensor:
        return self._workplace.strategy.run(self._infer, args=(batch,))

    @tf.autograph.experimental.do_not_convert  # nothing to convert, and rewriting the network's code takes long
    def _infer(self, batch: Batch) -> Tensor:
        return tf.cast(self._state.outputs(batch, training=False), tf.float32)


def evaluate_checkpoint(
    config: TrainConfig, source: Source, workplace: Workplace, *, split: str, checkpoint: str | None
) -> tuple[str, Evaluation]:
    """Judges a checkpoint (the newest by default) on a split; returns which one it was and the result."""
    found = agree_on_checkpoint(workplace, Path(config.output), lambda: find_checkpoint(config, checkpoint))
    state = build_state(config, source, workplace.strategy)
    restore(state, found)
    worst = config.evaluation.mistakes
    evaluator = Evaluator(config, source, workplace, state=state, split=split, worst=worst)
    return found, evaluator.evaluate(int(state.step.numpy()))
