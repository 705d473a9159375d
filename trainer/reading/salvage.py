"""Damaged records met while training or judging: found, named, and stopped at or passed over.

Records are read and decoded natively, a block at a time. Where that fails, the block is examined in Python, record by
record, to learn which ones are damaged; without damage nothing of this runs. A record that is passed over keeps its
place in its batch, as a copy of the nearest good record of its shard with weight 0: the order, and the number of
batches of every worker, stay what they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shards.errors import ShardsmithError
from shards.example import decode_example
from shards.records import FRAMING_BYTES, DamagedRecord, read_record
from trainer.learning.settings import BadRecord
from trainer.quiet import reason_of
from trainer.reading.source import Split

Tensor = Any
Dataset = Any
Record = dict[str, Tensor]  # of a block: each tensor holds its records along the first axis
PLACE = ("ordinal", "occurrence", "epoch")  # what decides, with the bytes of a record, what becomes of it
IN_FLIGHT = 2  # records for each thread, so that the next is there when one is done
REMEDY = "see all damage with `python -m shards verify`, mend it with `python -m pipelines repair`"


@dataclass(frozen=True)
class Salvage:
    """Gets what can be had of a split's blocks.

    `parse` makes features of serialized examples, `make` what a batch holds of one record: both decide what is damaged.
    `draw` adds what is drawn by chance for all records of a block at once.
    """

    split: Split
    policy: BadRecord | None  # None: stop, where there is no such setting
    parse: Callable[[Tensor], Record]
    make: Callable[[Record], Record] = lambda _: {}
    draw: Callable[[Record], Record] = lambda _: {}
    _told: set[int] = field(default_factory=set)

    def records(self, read: Callable[[Record], Dataset], block: Record) -> Dataset:
        """The records of a block: from `read`, which gives one tensor of them, serialized, or from an examination."""
        # As one operation, because a file that cannot be opened fails again and again when it is read as a dataset.
        native = tf.data.Dataset.from_tensors(block).map(
            lambda block: self._arrange(_complete(read(block).get_single_element(), block), block)
        )
        return native.ignore_errors().concatenate(self._examined(block)).take(1)

    def batches(self, records: Record, *, size: int, threads: int) -> Dataset:
        """What `make` gives for the records of a block, in batches; from one that fails on, from an examination."""
        numbered = self._batches(records, size=size, threads=threads).ignore_errors().enumerate()
        # A batch that failed is missing, and the next one comes where it should have been.
        gapless = numbered.take_while(lambda number, batch: batch[0][0] == number * size).map(lambda _, batch: batch)
        rest = self._examined(records).flat_map(
            lambda again: self._batches(again, size=size, threads=threads).skip(_first_damage(again) // size)
        )
        wanted = tf.shape(records["ordinal"], tf.int64)[0] // size
        return gapless.concatenate(rest).take(wanted).map(lambda _, batch: batch)

    def _batches(self, records: Record, *, size: int, threads: int) -> Dataset:
        """Batches with the places of their records in the block."""
        numbers = tf.range(tf.shape(records["ordinal"], tf.int64)[0])
        made = tf.data.Dataset.from_tensor_slices((numbers, records)).map(
            lambda number, record: (number, self._example(record)),
            num_parallel_calls=IN_FLIGHT * threads,
            deterministic=True,
        )
        return made.batch(size, drop_remainder=True)

    def _example(self, record: Record) -> Record:
        return self.make(record) | {"weight": record["weight"], "skipped": record["skipped"]}

    def _arrange(self, serialized: Tensor, block: Record, damaged: Tensor | None = None) -> Record:
        """The features of a block's records with what else is known about them."""
        damage = tf.zeros_like(block["weight"]) if damaged is None else damaged
        known = {name: block[name] for name in PLACE}
        weight = block["weight"] * (1.0 - damage)
        skipped = tf.sign(block["weight"]) * damage  # copies that fill a batch up were not going to count
        counts = {"weight": weight, "skipped": skipped, "damaged": damage}
        return self.parse(serialized) | known | self.draw(known) | counts

    def _examined(self, block: Record) -> Dataset:
        def examine(chosen: Record) -> Record:
            arguments = [tf.stack([chosen[name] for name in PLACE], axis=1)]
            serialized, damaged = tf.numpy_function(self._examine, arguments, [tf.string, tf.float32])
            shape = chosen["ordinal"].shape
            return self._arrange(tf.ensure_shape(serialized, shape), chosen, tf.ensure_shape(damaged, shape))

        chosen = {name: block[name] for name in (*PLACE, "weight")}
        return tf.data.Dataset.from_tensors(chosen).map(examine)

    def _examine(self, places: Any) -> tuple[Any, Any]:
        """The records at these places of the order, or stand-ins, as serialized examples, and which are damaged."""
        serialized, damaged = [], np.zeros(len(places), np.float32)
        for number, (ordinal, *chance) in enumerate(places.tolist()):
            try:
                serialized.append(self._read(ordinal, chance))
            except DamagedRecord as damage:
                self._tell(ordinal, damage)
                serialized.append(self._nearest(ordinal, chance))
                damaged[number] = 1
        return np.array(serialized, object), damaged

    def _read(self, ordinal: int, chance: list[int]) -> bytes:
        """The serialized example of a record that is sound in every way; raises DamagedRecord."""
        shard, record = self.split.place(ordinal)
        offset, _ = self.split.extent(shard, record, 1)
        try:
            with Path(self.split.paths[shard]).open("rb") as stream:
                stream.seek(offset)
                data = read_record(stream, record, offset)
        except OSError as error:
            raise ShardsmithError(
                f"shard {self.split.paths[shard]} cannot be read: {error.strerror}; "
                "bring it back, then give the same command to go on"
            ) from error
        try:
            self._try(data, [ordinal, *chance])
        except tf.errors.OpError as error:
            raise DamagedRecord(record, offset, reason_of(error.message).rstrip(".")) from error
        return data

    @cached_property
    def _try(self) -> Any:
        """Does with one record what will be done with it, and nothing with the result."""

        @tf.function(input_signature=[tf.TensorSpec([], tf.string), tf.TensorSpec([len(PLACE)], tf.int64)])
        def attempt(serialized: Tensor, place: Tensor) -> Record:
            block = dict(zip(PLACE, tf.split(place, len(PLACE)), strict=True)) | {"weight": tf.ones([1])}
            record = self._arrange(serialized[tf.newaxis], block)
            return self._example({name: values[0] for name, values in record.items()})

        return attempt

    def _nearest(self, ordinal: int, chance: list[int]) -> bytes:
        """The nearest good record of the same shard: a function of the damage alone, whoever reads, from wherever."""
        for neighbour in self._neighbours(ordinal):
            try:
                return self._read(neighbour, chance)
            except DamagedRecord:
                continue
        shard, _ = self.split.place(ordinal)
        raise ShardsmithError(f"shard {self.split.paths[shard]} has no record that can be used; {REMEDY}")

    def _neighbours(self, ordinal: int) -> Iterator[int]:
        shard, record = self.split.place(ordinal)
        numbers = np.arange(self.split.shard_records[shard])
        by_distance = np.argsort(np.abs(numbers - record), kind="stable")[1:]
        yield from (by_distance - record + ordinal).tolist()

    def _tell(self, ordinal: int, damage: DamagedRecord) -> None:
        """Says once which record is damaged; ends the reading if the policy is to stop."""
        shard, record = self.split.place(ordinal)
        path = self.split.paths[shard]
        text = f"record {record} of {path}{self._key(shard, record)}: {damage.problem}"
        if self.policy != "skip":
            choice = ", or pass such records over with --set faults.bad_record=skip" if self.policy else ""
            raise ShardsmithError(f"{text}; {REMEDY}{choice}")
        if ordinal not in self._told:
            self._told.add(ordinal)
            print(f"skipped  {text}", flush=True)

    def _key(self, shard: int, record: int) -> str:
        """The key of a record, as far as it can be read."""
        offset, size = self.split.extent(shard, record, 1)
        try:
            with Path(self.split.paths[shard]).open("rb") as stream:
                stream.seek(offset + 12)
                key = decode_example(stream.read(size - FRAMING_BYTES))["key"][0]
            return f" (key {key.decode()})" if isinstance(key, bytes) else ""
        except (OSError, ValueError, LookupError):
            return ""


def _complete(serialized: Tensor, block: Record) -> Tensor:
    """The records as they were read, in the order of the block; fails when a file ends between two of them."""
    with tf.control_dependencies(
        [tf.debugging.assert_equal(tf.size(serialized, tf.int64), tf.reduce_sum(block["count"]))]
    ):
        return tf.gather(serialized, block["take"])


def _first_damage(records: Record) -> Tensor:
    found = tf.debugging.assert_positive(
        tf.reduce_max(records["damaged"]), "a batch failed, but none of its records does"
    )
    with tf.control_dependencies([found]):
        return tf.argmax(records["damaged"])
