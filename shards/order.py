"""The order in which training and evaluation read a split: a pure function of a few integers, computed with NumPy.

Training, for one epoch:
- shards are cut into *runs* of consecutive records, and a permutation keyed by (seed, epoch) lays all runs in one line;
- the line is read in *windows* of whole global batches. A window is cut into equal *lanes*, and each lane's records are
  permuted, keyed by (seed, epoch, place in the line);
- a global batch takes the same number of records from each lane, and worker i of N owns the lanes l with l mod N = i.
  So the global batch at a step is the same set of records for any number of workers, and every worker has the same
  number of steps.

Each epoch draws every record once. Balanced sampling draws every class equally often instead: what an epoch draws of a
record is its share of its class, or one more, and the copies of a record are laid in the line apart from each other.
Draws that do not fill a last global batch are spread over the lanes, and copies of them, with weight 0, fill the batch
up: they are computed but do not count.

Evaluation reads each record once, in stored order, and pads the last batches with weight 0.

A record is named by its *ordinal*: its number in the split, counting through the shards in manifest order. A draw is
named by a number too: the ordinal, plus the number of records for each time that the epoch has drawn it before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shards.errors import UsageError

Ints = npt.NDArray[np.int64]
Classes = npt.NDArray[np.integer[Any]]  # the class of every record
LONGEST_SPAN = 256  # of an evaluation block; in training, a span is at most a run long


@dataclass(frozen=True, kw_only=True)
class Order:
    """The integers that, with the dataset, decide every batch of a training run."""

    seed: int
    global_batch: int
    lanes: int = 16
    run: int = 32
    window: int = 256

    def __post_init__(self) -> None:
        """Refuses numbers that cannot be dealt out evenly."""
        sizes = {"global batch": self.global_batch, "lanes": self.lanes, "run": self.run, "window": self.window}
        for name, size in sizes.items():
            if size < 1:
                raise UsageError(f"{name} must be at least 1, not {size}")
        if self.global_batch % self.lanes:
            raise UsageError(
                f"global batch {self.global_batch} is not divisible by {self.lanes} lanes; "
                f"choose a multiple of {self.lanes}, or set input.lanes to a divisor of {self.global_batch}"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(f"seed {self.seed} does not fit in 64 bits")

    @property
    def per_lane(self) -> int:
        """Records that each lane gives to a global batch."""
        return self.global_batch // self.lanes

    @property
    def steps_per_window(self) -> int:
        """Windows end on steps, so that a block of windows is a whole number of global batches."""
        return max(1, self.window // self.per_lane)

    def steps_per_epoch(self, records: int) -> int:
        """Global batches in an epoch, the last perhaps filled up; refuses a split that does not fill even one."""
        if records < self.global_batch:
            raise UsageError(
                f"{records} records do not fill one global batch of {self.global_batch}; "
                "choose a smaller global batch or a larger split"
            )
        return -(-records // self.global_batch)

    def window_of(self, step: int, records: int) -> tuple[int, int]:
        """The steps (begin, end) of the window that `step` is in; a last step that is not full is one of its own."""
        full = records // self.global_batch
        if step >= full:
            return full, full + 1
        begin = step // self.steps_per_window * self.steps_per_window
        return begin, min(begin + self.steps_per_window, full)

    def check_workers(self, workers: int) -> None:
        """Refuses a number of workers that cannot own the same number of lanes each."""
        if workers < 1 or self.lanes % workers:
            raise UsageError(
                f"{self.lanes} lanes cannot be dealt evenly to {workers} workers; "
                f"set input.lanes to a multiple of {workers} that divides the global batch {self.global_batch}"
            )


@dataclass(frozen=True)
class Block:
    """Some consecutive steps of one worker: the spans of records to read, and how to arrange what was read.

    Span k is the `count[k]` records from `first[k]` on of shard `shard[k]`. `take` lists, step after step, positions in
    the concatenated spans; `ordinals` and `weights` say which record each is and whether it counts (1) or pads (0).
    `occurrences` number the draws of a record in its epoch from 0 on.
    """

    shard: Ints
    first: Ints
    count: Ints
    take: Ints
    ordinals: Ints
    occurrences: Ints
    weights: npt.NDArray[np.float32]


def mix(*parts: int | Ints) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of integers, elementwise (splitmix64); NumPy's own generators may change between releases."""
    with np.errstate(over="ignore"):
        state: npt.NDArray[np.uint64] = np.asarray(0x9E3779B97F4A7C15, dtype=np.uint64)
        for part in parts:
            state = (np.asarray(part).astype(np.uint64) ^ state) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
        return state


@dataclass(frozen=True)
class RunLine:
    """Runs in their permuted order, each record drawn once: run k holds the `count[k]` ordinals from `first[k]` on."""

    first: Ints
    count: Ints
    start: Ints  # position of each run in the line

    @property
    def draws(self) -> int:
        """As many as there are records."""
        return int(self.count.sum())

    def between(self, begin: int, end: int) -> Ints:
        """The ordinals at these positions."""
        low = int(np.searchsorted(self.start, begin, side="right")) - 1
        high = int(np.searchsorted(self.start, end, side="left"))
        runs = [np.arange(f, f + c) for f, c in zip(self.first[low:high], self.count[low:high], strict=True)]
        skipped = begin - int(self.start[low])
        return np.concatenate(runs)[skipped : skipped + end - begin]


@dataclass(frozen=True)
class DrawnLine:
    """Draws in their permuted order, each of them written out."""

    numbers: Ints

    @property
    def draws(self) -> int:
        """As many as are written out."""
        return len(self.numbers)

    def between(self, begin: int, end: int) -> Ints:
        """The draws at these positions."""
        return self.numbers[begin:end]


EpochLine = RunLine | DrawnLine


def lay_out_epoch(shard_records: Sequence[int], order: Order, epoch: int, classes: Classes | None = None) -> EpochLine:
    """Cuts shards into runs and permutes the runs by (seed, epoch); with `classes`, each is drawn equally often."""
    sizes = np.asarray(shard_records, dtype=np.int64)
    shard_start = np.concatenate([[0], np.cumsum(sizes)])
    first = np.concatenate([np.arange(a, b, order.run) for a, b in pairwise(shard_start)])
    if classes is not None:
        return _lay_out_balanced(first, order, epoch, classes)
    last = np.minimum(first + order.run, shard_start[np.searchsorted(shard_start, first, side="right")])
    shuffled = np.argsort(mix(order.seed, epoch, first), kind="stable")
    count = (last - first)[shuffled]
    return RunLine(first=first[shuffled], count=count, start=np.concatenate([[0], np.cumsum(count)[:-1]]))


def _lay_out_balanced(first: Ints, order: Order, epoch: int, classes: Classes) -> DrawnLine:
    """Copies of a record are far from each other: what a run's records are drawn once more makes a run of its own."""
    records = len(classes)
    times = times_drawn(classes, order, epoch)
    ordinals = np.repeat(np.arange(records), times)
    before = (np.arange(len(ordinals)) - np.repeat(np.cumsum(times) - times, times)) * records
    runs = first[np.searchsorted(first, ordinals, side="right") - 1] + before
    return DrawnLine((ordinals + before)[np.argsort(mix(order.seed, epoch, runs), kind="stable")])


def times_drawn(classes: Classes, order: Order, epoch: int) -> Ints:
    """How often a balanced epoch draws each record; who is drawn once more than others of its class is by chance."""
    members = np.bincount(classes)
    present = int(np.count_nonzero(members))
    share = balanced_draws(len(classes), present) // present
    by_class = np.lexsort((mix(order.seed, epoch, 2, np.arange(len(classes))), classes))
    place = np.empty_like(by_class)
    place[by_class] = np.arange(len(classes)) - (np.cumsum(members) - members)[classes[by_class]]
    each, more = np.divmod(share, members[classes])
    return each + (place < more)


def balanced_draws(records: int, classes: int) -> int:
    """The draws in a balanced epoch: as many as there are records, rounded up to the same number for each class."""
    return -(-records // classes) * classes


def training_blocks(
    shard_records: Sequence[int],
    order: Order,
    *,
    epoch: int,
    worker: int,
    workers: int,
    start_step: int = 0,
    classes: Classes | None = None,
) -> Iterator[Block]:
    """Yields one worker's blocks of an epoch from `start_step` on; each window of steps is one block.

    `classes` holds the class of every record if each class is to be drawn equally often.
    """
    order.check_workers(workers)
    order.steps_per_epoch(sum(shard_records))  # refuses too few before they are laid out
    line = lay_out_epoch(shard_records, order, epoch, classes)
    step, steps = start_step, order.steps_per_epoch(line.draws)
    lanes = range(worker, order.lanes, workers)
    while step < steps:
        begin, end = order.window_of(step, line.draws)
        batches, counts = _window(line, order, epoch, begin, end)
        # [lane, step, record] -> [step, lane, record]: the batch of a step takes from each lane in turn.
        mine = batches[lanes].swapaxes(0, 1)[step - begin :].ravel()
        counted = counts[lanes].swapaxes(0, 1)[step - begin :].ravel()
        yield _block(mine, shard_records, longest=order.run, counts=counted)
        step = end


def _window(line: EpochLine, order: Order, epoch: int, begin: int, end: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """The draws of the steps from `begin` up to `end` as [lane, step, draw], and which of them count."""
    shape = order.lanes, end - begin, order.per_lane
    first, last = begin * order.global_batch, min(end * order.global_batch, line.draws)
    draws, places = line.between(first, last), np.arange(first, last)
    if len(draws) < order.global_batch:  # the last step of the epoch: dealt lane by lane, then again from the start
        shuffled = draws[np.argsort(_keys(order, epoch, places), kind="stable")]
        slots = np.arange(order.global_batch).reshape(-1, order.lanes).T.reshape(shape)
        return shuffled[slots % len(draws)], slots < len(draws)
    keys = _keys(order, epoch, places).reshape(order.lanes, -1)
    by_lane = np.take_along_axis(draws.reshape(order.lanes, -1), np.argsort(keys, axis=1, kind="stable"), axis=1)
    return by_lane.reshape(shape), np.ones(shape, np.bool_)


def _keys(order: Order, epoch: int, places: Ints) -> npt.NDArray[np.uint64]:
    return mix(order.seed, epoch, 1, places)


def global_batch(shard_records: Sequence[int], order: Order, *, step: int, classes: Classes | None = None) -> Ints:
    """The ordinals that count in the global batch of a step, counted from the start of training; in lane order."""
    records = sum(shard_records)
    draws = records if classes is None else balanced_draws(records, len(np.unique(classes)))
    epoch, start = divmod(step, order.steps_per_epoch(draws))
    block = next(
        training_blocks(shard_records, order, epoch=epoch, worker=0, workers=1, start_step=start, classes=classes)
    )
    counts = block.weights[: order.global_batch] > 0
    return block.ordinals[: order.global_batch][counts]


def evaluation_blocks(
    shard_records: Sequence[int], *, batch: int, worker: int, workers: int, window: int = 1024
) -> Iterator[Block]:
    """Yields one worker's share of a split: each record once over all workers, the same number of batches for each.

    A split without records has no batches.
    """
    records = sum(shard_records)
    share = -(-records // (batch * workers)) * batch
    width = max(1, window // batch) * batch
    for begin in range(worker * share, (worker + 1) * share, width):
        positions = np.arange(begin, min(begin + width, (worker + 1) * share))
        counts = positions < records
        yield _block(np.minimum(positions, records - 1), shard_records, longest=LONGEST_SPAN, counts=counts)


def _block(
    draws: Ints, shard_records: Sequence[int], *, longest: int, counts: npt.NDArray[np.bool_] | None = None
) -> Block:
    """Finds the spans that hold the draws: stretches of consecutive records within a shard, at most `longest` long."""
    occurrences, ordinals = np.divmod(draws, sum(shard_records))
    needed = np.unique(ordinals)
    shard_start = np.concatenate([[0], np.cumsum(np.asarray(shard_records, dtype=np.int64))])
    shard = np.searchsorted(shard_start, needed, side="right") - 1
    breaks = np.flatnonzero((np.diff(needed) != 1) | (np.diff(shard) != 0)) + 1
    edges = np.concatenate([[0], breaks, [len(needed)]])
    starts = np.concatenate([np.arange(a, b, longest) for a, b in pairwise(edges)])
    return Block(
        shard=shard[starts],
        first=(needed - shard_start[shard])[starts],
        count=np.diff(np.append(starts, len(needed))),
        take=np.searchsorted(needed, ordinals),
        ordinals=ordinals,
        occurrences=occurrences,
        weights=np.ones(len(ordinals), np.float32) if counts is None else counts.astype(np.float32),
    )
