"""The reading order: complete, the same for any number of workers, resumable anywhere, well mixed, and frozen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards_data import thorough

from shards.errors import UsageError
from shards.order import (
    LONGEST_SPAN,
    Block,
    Order,
    balanced_draws,
    evaluation_blocks,
    global_batch,
    lay_out_epoch,
    mix,
    times_drawn,
    training_blocks,
)


@dataclass(frozen=True)
class Case:
    """A split and an order that can read it."""

    shards: tuple[int, ...]
    order: Order
    epoch: int
    classes: tuple[int, ...] | None = None

    @property
    def records(self) -> int:
        return sum(self.shards)

    @property
    def draws(self) -> int:
        return self.records if self.classes is None else balanced_draws(self.records, len(set(self.classes)))

    @property
    def steps(self) -> int:
        return self.order.steps_per_epoch(self.draws)

    @property
    def labels(self) -> np.ndarray | None:
        return None if self.classes is None else np.array(self.classes, np.int32)

    def blocks(self, **values: int) -> Iterator[Block]:
        values = {"epoch": self.epoch, "worker": 0, "workers": 1} | values
        return training_blocks(self.shards, self.order, classes=self.labels, **values)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Empty shards, splits of hardly a batch, runs longer than shards, windows shorter than a step: all occur."""
    lanes = draw(st.sampled_from([1, 2, 4, 8, 12]))
    batch = lanes * draw(st.integers(1, 4))
    shards = draw(st.lists(st.sampled_from([0, 1, 2, 7, 32, 33, 100]), min_size=1, max_size=8))
    shards.insert(draw(st.integers(0, len(shards))), batch)  # at least one step
    order = Order(
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        global_batch=batch,
        lanes=lanes,
        run=draw(st.integers(1, 40)),
        window=draw(st.integers(1, 64)),
    )
    return Case(tuple(shards), order, epoch=draw(st.integers(0, 1000)))


@st.composite
def balanced_cases(draw: st.DrawFn) -> Case:
    """Classes of very different sizes, ids without any record, splits of one class: all occur."""
    case = draw(cases())
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 20, 200]), min_size=1, max_size=6))
    often = [number for number, size in enumerate(sizes) for _ in range(size)] or [3]
    generator = np.random.default_rng(draw(st.integers(0, 100)))
    return replace(case, classes=tuple(generator.choice(often, case.records).tolist()))


any_cases = st.one_of(cases(), balanced_cases())


def worker_counts(case: Case) -> list[int]:
    return [workers for workers in (1, 2, 3, 4) if case.order.lanes % workers == 0]


FILLER = -1


def read(case: Case, *, worker: int = 0, workers: int = 1, start_step: int = 0) -> np.ndarray:
    """What one worker reads in the epoch: [step, record], with FILLER for what does not count."""
    blocks = case.blocks(worker=worker, workers=workers, start_step=start_step)
    found = [np.where(block.weights > 0, block.ordinals, FILLER) for block in blocks]
    ordinals = np.concatenate(found) if found else np.zeros(0, np.int64)
    return ordinals.reshape(-1, case.order.global_batch // workers)


def counted(ordinals: np.ndarray) -> list[int]:
    return ordinals[ordinals != FILLER].tolist()


def open_spans(block: Block, shards: Sequence[int]) -> Iterator[int]:
    """The ordinals that reading the spans from the shards would give, in order."""
    starts = np.concatenate([[0], np.cumsum(shards)])
    for shard, first, count in zip(block.shard, block.first, block.count, strict=True):
        assert count >= 1
        assert 0 <= first < first + count <= shards[shard]
        yield from range(starts[shard] + first, starts[shard] + first + count)


# Two whole epochs of three shards with 5, 0 and 6 records. Published results depend on this order: whoever changes it
# makes resumed runs continue with other examples than they began with, and must say so in CHANGELOG.md.
FROZEN_SHARDS = (5, 0, 6)
FROZEN = Order(seed=1, global_batch=4, lanes=2, run=2, window=4)


def test_frozen_order() -> None:
    assert [read(Case(FROZEN_SHARDS, FROZEN, epoch)).tolist() for epoch in (0, 1)] == [
        [[2, 7, 1, 0], [3, 8, 9, 10], [6, 5, 4, FILLER]],
        [[4, 1, 9, 5], [0, 7, 10, 8], [2, 6, 3, FILLER]],
    ]


def test_frozen_balanced_order() -> None:
    classes = (0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2)
    assert read(Case(FROZEN_SHARDS, FROZEN, 0, classes)).tolist() == [[2, 8, 6, 4], [7, 9, 10, 1], [10, 6, 6, 10]]


def test_frozen_hash() -> None:
    # The second number of the splitmix64 generator seeded with 0, as published; then two of our own chains.
    assert mix(0).item() == 0x6E789E6AA1B965F4
    assert mix(1, 2, np.arange(3)).tolist() == [0x35D9CD3E3446B06D, 0x69288792935F46CB, 0xD3895915EC7A4C6B]


@thorough
@given(cases())
def test_an_epoch_reads_each_record_once_and_fills_only_its_last_batch(case: Case) -> None:
    batches = read(case)
    assert batches.shape == (-(-case.records // case.order.global_batch), case.order.global_batch)
    assert sorted(counted(batches)) == list(range(case.records))
    assert FILLER not in batches[:-1]


@thorough
@given(any_cases)
def test_the_last_batch_is_shared_by_all_lanes_and_filled_with_copies_of_itself(case: Case) -> None:
    [last] = list(case.blocks(start_step=case.draws // case.order.global_batch)) or [None]
    if last is None:
        assert case.draws % case.order.global_batch == 0
        return
    per_lane = last.weights.reshape(case.order.lanes, -1).sum(axis=1)
    assert per_lane.max() - per_lane.min() <= 1
    assert set(last.ordinals.tolist()) == set(last.ordinals[last.weights > 0].tolist())


@thorough
@given(any_cases)
def test_the_global_batch_is_the_same_for_any_number_of_workers(case: Case) -> None:
    expected = np.sort(read(case), axis=1)
    for workers in worker_counts(case):
        parts = [read(case, worker=worker, workers=workers) for worker in range(workers)]
        assert {part.shape for part in parts} == {(case.steps, case.order.global_batch // workers)}
        np.testing.assert_array_equal(np.sort(np.concatenate(parts, axis=1), axis=1), expected)


@thorough
@given(any_cases)
def test_worker_i_of_n_owns_the_lanes_i_modulo_n(case: Case) -> None:
    lanes = read(case).reshape(case.steps, case.order.lanes, case.order.per_lane)
    for workers in worker_counts(case):
        for worker in range(workers):
            owned = lanes[:, worker::workers].reshape(case.steps, -1)
            assert read(case, worker=worker, workers=workers).tolist() == owned.tolist()


@thorough
@given(any_cases, st.data())
def test_global_batch_counts_steps_through_epochs(case: Case, draw: st.DataObject) -> None:
    step = draw.draw(st.integers(0, case.steps - 1))
    found = global_batch(case.shards, case.order, step=case.epoch * case.steps + step, classes=case.labels)
    assert found.tolist() == counted(read(case)[step])


@thorough
@given(any_cases, st.data())
def test_resuming_reads_exactly_the_rest(case: Case, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, case.steps + 2))
    workers = draw.draw(st.sampled_from(worker_counts(case)))
    worker = draw.draw(st.integers(0, workers - 1))
    whole = read(case, worker=worker, workers=workers)
    rest = read(case, worker=worker, workers=workers, start_step=start)
    assert rest.tolist() == whole[start:].tolist()


@thorough
@given(any_cases, st.data())
def test_spans_and_take_rebuild_the_ordinals(case: Case, draw: st.DataObject) -> None:
    workers = draw.draw(st.sampled_from(worker_counts(case)))
    start = draw.draw(st.integers(0, case.steps - 1))
    for block in case.blocks(worker=workers - 1, workers=workers, start_step=start):
        records = np.array(list(open_spans(block, case.shards)))
        assert records[block.take].tolist() == block.ordinals.tolist()
        assert set(block.take.tolist()) == set(range(len(records)))  # nothing is read in vain
        assert block.count.max() <= case.order.run
        assert block.weights.dtype == np.float32


@thorough
@given(any_cases)
def test_blocks_are_windows_of_whole_steps(case: Case) -> None:
    blocks = list(case.blocks())
    steps = [len(block.ordinals) // case.order.global_batch for block in blocks]
    assert sum(steps) == case.steps
    if case.draws % case.order.global_batch:
        assert steps.pop() == 1  # the batch that is not full stands alone
    assert steps[:-1] == [case.order.steps_per_window] * (len(steps) - 1)
    assert steps[-1] <= case.order.steps_per_window
    # A window holds at most `window` records of a lane, or one step if that is more.
    assert case.order.steps_per_window * case.order.per_lane <= max(case.order.window, case.order.per_lane)


@thorough
@given(cases())
def test_runs_cover_each_record_once_and_stay_within_shards(case: Case) -> None:
    line = lay_out_epoch(case.shards, case.order, case.epoch)
    starts = np.concatenate([[0], np.cumsum(case.shards)])
    covered: list[int] = []
    for first, count in zip(line.first, line.count, strict=True):
        assert 1 <= count <= case.order.run
        assert np.searchsorted(starts, first, side="right") == np.searchsorted(starts, first + count - 1, side="right")
        covered += range(first, first + count)
    assert sorted(covered) == list(range(case.records))
    assert line.between(0, case.records).tolist() == covered


@thorough
@given(balanced_cases())
def test_a_balanced_epoch_draws_each_class_equally_often_and_records_of_a_class_almost(case: Case) -> None:
    drawn = np.bincount(counted(read(case)), minlength=case.records)
    share, rest = divmod(case.draws, len(set(case.classes)))
    assert rest == 0
    assert case.records <= case.draws < case.records + len(set(case.classes))
    for each in set(case.classes):
        times = drawn[case.labels == each]
        assert times.sum() == share
        assert set(times.tolist()) <= {share // len(times), -(-share // len(times))}


@thorough
@given(balanced_cases())
def test_the_draws_of_a_record_are_numbered(case: Case) -> None:
    seen = [
        (ordinal, occurrence)
        for block in case.blocks()
        for ordinal, occurrence, weight in zip(block.ordinals, block.occurrences, block.weights, strict=True)
        if weight
    ]
    times = times_drawn(case.labels, case.order, case.epoch)
    assert sorted(seen) == [(ordinal, n) for ordinal in range(case.records) for n in range(times[ordinal])]


@thorough
@given(cases())
def test_what_is_balanced_already_is_read_in_the_natural_order(case: Case) -> None:
    assert read(replace(case, classes=tuple(range(case.records)))).tolist() == read(case).tolist()


RARE = Case(
    (2000, 2000),
    Order(seed=5, global_batch=40, lanes=4, run=8, window=64),
    epoch=0,
    classes=(0,) * 1990 + (1,) * 20 + (0,) * 1990,
)


def test_a_rare_class_is_spread_over_the_epoch() -> None:
    rare = RARE.labels[read(RARE)] == 1
    assert rare.sum() == RARE.draws / 2
    # A window of 256 draws expects 128 of the rare class. Copies of a record that stayed together, a hundred in a row,
    # would make windows without any.
    windows = rare[: len(rare) // 6 * 6].reshape(-1, 240).mean(axis=1)
    assert windows.min() > 0.2
    assert windows.max() < 0.8


def test_which_records_are_drawn_once_more_changes_with_the_epoch() -> None:
    times = [times_drawn(RARE.labels, RARE.order, epoch) for epoch in (0, 1)]
    common = RARE.labels == 0
    assert times[0][common].max() == 1  # half of the common ones are left out
    assert 0.4 < (times[0] == times[1])[common].mean() < 0.6


LARGE = Case((300, 0, 200, 500), Order(seed=3, global_batch=40, lanes=4, run=8, window=64), epoch=0)


def test_epochs_seeds_and_windows_change_the_order() -> None:
    orders = {
        "as it is": LARGE,
        "next epoch": replace(LARGE, epoch=1),
        "other seed": replace(LARGE, order=replace(LARGE.order, seed=4)),
        "seed and epoch exchanged": replace(LARGE, epoch=3, order=replace(LARGE.order, seed=0)),
        "negative seed": replace(LARGE, order=replace(LARGE.order, seed=-3)),
        "longer run": replace(LARGE, order=replace(LARGE.order, run=16)),
        "smaller window": replace(LARGE, order=replace(LARGE.order, window=32)),
        "other lanes": replace(LARGE, order=replace(LARGE.order, lanes=8)),
    }
    found = {name: tuple(read(case).ravel().tolist()) for name, case in orders.items()}
    assert len(set(found.values())) == len(orders)
    assert found["as it is"] == tuple(read(LARGE).ravel().tolist())


MIXED = Case((4000,) * 5, Order(seed=0, global_batch=64, lanes=16, run=32, window=256), epoch=0)


def test_a_batch_is_mixed_like_independent_draws() -> None:
    batches = read(MIXED)[:-1] / MIXED.records  # without the last, which is not full
    # Two independent places in 0..1 lie 1/3 apart on average; the order inside a batch does not matter.
    distances = np.abs(batches[:, :, None] - batches[:, None, :])
    assert distances.sum() / (distances.size - batches.size) == pytest.approx(1 / 3, rel=0.02)
    # The mean of 64 independent places has a standard error of 0.289 / 8 = 0.036.
    assert batches.mean() == pytest.approx(0.5, abs=0.001)
    assert batches.mean(axis=1).std() < 1.5 * 0.036
    assert batches.mean(axis=1).std() > 0.5 * 0.036


def test_neighbours_in_a_shard_are_not_neighbours_in_training() -> None:
    distances = np.abs(np.diff(counted(read(MIXED))))
    # By chance 1 in 10,000 would be; here 1 in 160, because a lane's window holds 8 runs and not all 625.
    assert (distances == 1).mean() < 0.01
    assert distances.mean() > 0.85 * MIXED.records / 3


def test_the_place_in_an_epoch_tells_nothing() -> None:
    first, second = (np.array(counted(read(replace(MIXED, epoch=epoch)))) for epoch in (0, 1))
    bound = 3 / np.sqrt(MIXED.records / MIXED.order.run)  # three standard errors: it is runs that are dealt by chance
    assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < bound
    both = np.intersect1d(first, second)
    place = {
        name: {record: n for n, record in enumerate(order.tolist())} for name, order in (("a", first), ("b", second))
    }
    places = np.array([(place["a"][record], place["b"][record]) for record in both.tolist()])
    assert abs(np.corrcoef(places.T)[0, 1]) < bound


def test_hash_is_uniform() -> None:
    # The top bits of the hashes of consecutive numbers fill 64 bins evenly: chi-squared, 63 degrees, 99.9 % below 104.
    counts = np.bincount((mix(7, np.arange(64_000)) >> np.uint64(58)).astype(int), minlength=64)
    assert ((counts - 1000) ** 2 / 1000).sum() < 104


@pytest.mark.parametrize("shards", [(), (0,), (0, 0, 0), (3,), (1, 0, 2)])
def test_a_split_smaller_than_a_batch_cannot_be_trained_on(shards: tuple[int, ...]) -> None:
    order = Order(seed=0, global_batch=4, lanes=2)
    message = (
        f"^{sum(shards)} records do not fill one global batch of 4; choose a smaller global batch or a larger split$"
    )
    with pytest.raises(UsageError, match=message):
        next(training_blocks(shards, order, epoch=0, worker=0, workers=1))
    with pytest.raises(UsageError, match=message):
        global_batch(shards, order, step=0)
    with pytest.raises(UsageError, match=message):
        order.steps_per_epoch(sum(shards))


def test_a_split_of_exactly_one_batch_has_one_step() -> None:
    case = Case((1, 0, 3), Order(seed=0, global_batch=4, lanes=2), epoch=0)
    assert np.sort(read(case)).tolist() == [[0, 1, 2, 3]]


def test_starting_after_the_last_step_reads_nothing() -> None:
    assert list(training_blocks(LARGE.shards, LARGE.order, epoch=0, worker=0, workers=1, start_step=LARGE.steps)) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"global_batch": 100, "lanes": 16},
            "^global batch 100 is not divisible by 16 lanes; "
            r"choose a multiple of 16, or set input\.lanes to a divisor of 100$",
        ),
        ({"global_batch": 0}, "^global batch must be at least 1, not 0$"),
        ({"global_batch": -16}, "^global batch must be at least 1, not -16$"),
        ({"lanes": 0}, "^lanes must be at least 1, not 0$"),
        ({"run": 0}, "^run must be at least 1, not 0$"),
        ({"window": -1}, "^window must be at least 1, not -1$"),
        ({"seed": 2**63}, "^seed 9223372036854775808 does not fit in 64 bits$"),
    ],
)
def test_impossible_orders_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Order(**{"seed": 0, "global_batch": 64, **values})


@pytest.mark.parametrize("workers", [0, 3, 5, 32])
def test_workers_that_cannot_share_the_lanes_are_refused(workers: int) -> None:
    order = Order(seed=0, global_batch=64, lanes=16)
    message = (
        f"^16 lanes cannot be dealt evenly to {workers} workers; "
        rf"set input\.lanes to a multiple of {workers} that divides the global batch 64$"
    )
    with pytest.raises(UsageError, match=message):
        order.check_workers(workers)
    with pytest.raises(UsageError, match=message):
        next(training_blocks((100,), order, epoch=0, worker=0, workers=workers))


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
def test_workers_that_can_share_the_lanes_are_accepted(workers: int) -> None:
    Order(seed=0, global_batch=64, lanes=16).check_workers(workers)


shard_sizes = st.lists(st.sampled_from([0, 1, 2, 7, 32, 300]), max_size=6)


@thorough
@given(shard_sizes, st.integers(1, 20), st.integers(1, 5), st.integers(1, 600))
def test_evaluation_counts_each_record_once_on_any_number_of_workers(
    shards: list[int], batch: int, workers: int, window: int
) -> None:
    counted: list[int] = []
    lengths = set()
    for worker in range(workers):
        blocks = list(evaluation_blocks(shards, batch=batch, worker=worker, workers=workers, window=window))
        lengths.add(sum(len(block.ordinals) for block in blocks))
        for block in blocks:
            records = np.array(list(open_spans(block, shards)))
            assert records[block.take].tolist() == block.ordinals.tolist()
            assert len(block.ordinals) % batch == 0
            assert len(block.ordinals) <= max(window, batch)
            assert block.count.max() <= LONGEST_SPAN
            assert set(block.weights.tolist()) <= {0.0, 1.0}
            counted += block.ordinals[block.weights == 1].tolist()
    assert counted == list(range(sum(shards)))  # each once, and in stored order over the workers
    batches = -(-sum(shards) // (batch * workers))
    assert lengths == {batches * batch}


def test_evaluation_pads_with_weightless_records() -> None:
    (first,) = evaluation_blocks((2, 0, 3), batch=4, worker=0, workers=2)
    (second,) = evaluation_blocks((2, 0, 3), batch=4, worker=1, workers=2)
    assert (first.ordinals.tolist(), first.weights.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 1])
    assert (second.ordinals.tolist(), second.weights.tolist()) == ([4, 4, 4, 4], [1, 0, 0, 0])
    assert (first.shard.tolist(), first.first.tolist(), first.count.tolist()) == ([0, 2], [0, 0], [2, 2])
    assert (second.shard.tolist(), second.first.tolist(), second.count.tolist()) == ([2], [2], [1])


@pytest.mark.parametrize("shards", [(), (0,), (0, 0)])
def test_evaluating_a_split_without_records_has_no_batches(shards: tuple[int, ...]) -> None:
    assert list(evaluation_blocks(shards, batch=4, worker=0, workers=2)) == []
