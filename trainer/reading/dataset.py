"""tf.data over the order of `shards.order`: which record comes when is decided there, here it is read and decoded.

A block of the order names spans of records. Spans are read in parallel but delivered in order, arranged as the block
says, and stay encoded until they are about to be used. Both datasets are endless, so that one iterator lives as long as
the program: taking an iterator down and building it up again costs seconds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from shards.order import LONGEST_SPAN, Block, evaluation_blocks
from trainer.config import TrainConfig
from trainer.learning.mixing import draw_mix
from trainer.learning.task import make_task
from trainer.reading.cache import local_split
from trainer.reading.columns import Columns, parse_records
from trainer.reading.inputs import make_inputs
from trainer.reading.plan import training_plan
from trainer.reading.salvage import Salvage
from trainer.reading.sampling import classes_to_balance
from trainer.reading.seeds import seed_of
from trainer.reading.source import Source, Split

Tensor = Any
Dataset = Any
Record = dict[str, Tensor]
Features = dict[str, Any]  # how each feature is parsed, by its name
Plan = Callable[[], Iterator[tuple[int, Block]]]

OPEN_SPANS = 16
KEY = {"key": tf.io.FixedLenFeature([], tf.string, default_value="")}
BLOCK_SIGNATURE = {
    "path": tf.TensorSpec([None], tf.string),
    "offset": tf.TensorSpec([None], tf.int64),
    "bytes": tf.TensorSpec([None], tf.int64),
    "count": tf.TensorSpec([None], tf.int64),
    "take": tf.TensorSpec([None], tf.int64),
    "ordinal": tf.TensorSpec([None], tf.int64),
    "occurrence": tf.TensorSpec([None], tf.int64),
    "weight": tf.TensorSpec([None], tf.float32),
    "epoch": tf.TensorSpec([None], tf.int64),
}


@dataclass(frozen=True)
class Share:
    """One worker's part of the reading: worker `worker` of `workers`, in batches of `batch`, on `threads` threads."""

    worker: int
    workers: int
    batch: int
    threads: int


def training_dataset(config: TrainConfig, source: Source, share: Share, *, start_step: int) -> Dataset:
    """Batches {image or features, label or target, weight, skipped, ordinal, fingerprint}, without end.

    The first is that of `start_step`. Pictures are changed at random as the config says; how examples are to be mixed
    is in the batch too.
    """
    inputs, split = make_inputs(source.form), source.split(config.splits.train)

    def prepare(record: Record) -> Record:
        drawn = draw_mix(config, seed=seed_of(record, config.seed), form=source.form)
        return {inputs.feature: inputs.for_training(record, config)} | drawn

    salvage = _salvage(config, source, split.name, prepare, draw=lambda places: inputs.draw(places, config))
    blocks = _read(_training_plan(config, split, share, start_step), share, salvage, longest=config.input.run)
    return _batches(blocks, salvage, share, prefetch=config.input.prefetch)


def evaluation_dataset(config: TrainConfig, source: Source, share: Share, *, split: str) -> Dataset:
    """Batches of a split as in training, but unchanged, pass after pass; batch b of a split is always the same."""
    plan = _evaluation_plan(source.split(split), share, worker_batch=share.batch)
    inputs = make_inputs(source.form)
    salvage = _salvage(config, source, split, lambda record: {inputs.feature: inputs.for_evaluation(record)})
    blocks = _read(plan, share, salvage, longest=LONGEST_SPAN)
    return _batches(blocks, salvage, share, prefetch=config.input.prefetch)


def record_features(source: Source) -> Features:
    """The features that training needs of a record."""
    inputs, task = make_inputs(source.form), make_task(source)
    return {inputs.feature: inputs.stored, task.feature: task.stored} | Columns(source.columns).stored


def training_records(config: TrainConfig, source: Source, share: Share, *, start_step: int) -> Dataset:
    """One worker's records in training order, still encoded: features, key, ordinal, occurrence, epoch and weight."""
    split = source.split(config.splits.train)
    local = local_split(config, source, split.name)
    salvage = Salvage(local, config.faults.bad_record, _parser(record_features(source)))
    plan = _training_plan(config, split, share, start_step)
    return _read(plan, share, salvage, longest=config.input.run).unbatch()


def evaluation_records(split: Split, share: Share, *, features: Features, worker_batch: int) -> Dataset:
    """One worker's records in stored order, pass after pass, still encoded; padding has weight 0."""
    salvage = Salvage(split, None, _parser(features))
    plan = _evaluation_plan(split, share, worker_batch=worker_batch)
    return _read(plan, share, salvage, longest=LONGEST_SPAN).unbatch()


def _training_plan(config: TrainConfig, split: Split, share: Share, start_step: int) -> Plan:
    classes_to_balance(config, split)  # read before TensorFlow asks for them: it would tell what is wrong as its own
    return lambda: training_plan(config, split, worker=share.worker, workers=share.workers, start_step=start_step)


def _evaluation_plan(split: Split, share: Share, *, worker_batch: int) -> Plan:
    def plan() -> Iterator[tuple[int, Block]]:
        while True:
            for block in evaluation_blocks(
                split.shard_records, batch=worker_batch, worker=share.worker, workers=share.workers
            ):
                yield 0, block

    return plan


def _salvage(
    config: TrainConfig,
    source: Source,
    split: str,
    prepare: Callable[[Record], Record],
    *,
    draw: Callable[[Record], Record] = lambda _: {},
) -> Salvage:
    task, columns, local = make_task(source), Columns(source.columns), local_split(config, source, split)

    def example(record: Record) -> Record:
        return (
            prepare(record)
            | columns.of(record)
            | {
                task.feature: task.target(record[task.feature]),
                "ordinal": record["ordinal"],
                "fingerprint": record["fingerprint"],
            }
        )

    return Salvage(local, config.faults.bad_record, _parser(record_features(source)), make=example, draw=draw)


def _parser(features: Features) -> Callable[[Tensor], Record]:
    def parse(serialized: Tensor) -> Record:
        records = parse_records(serialized, features | KEY)
        return records | {"fingerprint": fingerprint(records["key"])}

    return parse


def _read(plan: Plan, share: Share, salvage: Salvage, *, longest: int) -> Dataset:
    """The records of the plan, block by block, still encoded."""
    blocks = tf.data.Dataset.from_generator(
        lambda: (_describe(block, salvage.split, epoch) for epoch, block in plan()), output_signature=BLOCK_SIGNATURE
    )

    def read_block(block: Record) -> Dataset:
        return _read_block(block, share.threads, longest=longest)

    read = blocks.flat_map(lambda block: salvage.records(read_block, block))
    return read.prefetch(1)  # one block ahead: the next window is read while this one is used


def _describe(block: Block, split: Split, epoch: int) -> dict[str, Any]:
    """A block as arrays that name files and byte ranges instead of record numbers; the files are there."""
    split.bring(block.shard.tolist())
    spans = zip(block.shard.tolist(), block.first.tolist(), block.count.tolist(), strict=True)
    extents = np.array([split.extent(*span) for span in spans], dtype=np.int64)
    return {
        "path": [split.paths[shard] for shard in block.shard],
        "offset": extents[:, 0],
        "bytes": extents[:, 1],
        "count": block.count,
        "take": block.take,
        "ordinal": block.ordinals,
        "occurrence": block.occurrences,
        "weight": block.weights,
        "epoch": np.full(len(block.take), epoch),
    }


def _read_block(block: dict[str, Tensor], threads: int, *, longest: int) -> Dataset:
    spans = tf.data.Dataset.from_tensor_slices({name: block[name] for name in ("path", "offset", "bytes", "count")})
    serialized = spans.interleave(
        _open_span,
        cycle_length=OPEN_SPANS,
        block_length=longest,  # a span is used up before its turn ends, so records arrive in the order of the spans
        num_parallel_calls=threads,
        deterministic=True,
    )
    return serialized.batch(tf.reduce_sum(block["count"]))


def _open_span(span: dict[str, Tensor]) -> Dataset:
    # The public TFRecordDataset cannot start in the middle of a file; the op behind it can.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[span["path"]], compression_type="", buffer_size=span["bytes"], byte_offsets=[span["offset"]]
    )
    return dataset_ops._VariantDataset(variant, tf.TensorSpec([], tf.string)).take(span["count"])


def _batches(blocks: Dataset, salvage: Salvage, share: Share, *, prefetch: int) -> Dataset:
    batches = blocks.flat_map(lambda records: salvage.batches(records, size=share.batch, threads=share.threads))
    return batches.prefetch(prefetch).with_options(_options())


def fingerprint(key: Tensor) -> Tensor:
    """A number for each key, for batches: text cannot go to every device."""
    return tf.strings.to_hash_bucket_fast(key, 2**63 - 1)


def _options() -> Any:
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # with it, ending an iterator sometimes blocks for two seconds
    return options
