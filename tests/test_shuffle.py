"""How well a dataset is shuffled: the statistics are right, built datasets pass, and an order is found out."""

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from conftest import make_config
from hypothesis import given
from hypothesis import strategies as st
from shards_data import brief

from pipelines.finish.shuffle import (
    chi_square_tail,
    cross_table,
    measure_shuffle,
    mix_p,
    natural_order,
    number_kinds,
    runs_z,
    source_halves,
)
from pipelines.planning.splits import order_hash
from pipelines.values import Content, Receipt
from pipelines.workspace.layout import BuildFolder, load_receipts, save_receipt
from pipelines.writing.facts import RowWriter, facts_schema
from pipelines.writing.seen import SEEN_SCHEMA

CONFIG = make_config("raw", "out")


@pytest.mark.parametrize("counts", [(3, 3), (2, 5), (2, 2, 3), (1, 1, 4), (1, 2, 2, 2)])
def test_the_runs_test_agrees_with_all_orders_there_are(counts):
    kinds = [number for number, count in enumerate(counts) for _ in range(count)]
    orders = sorted(set(itertools.permutations(kinds)))
    runs = np.array([1 + sum(one != other for one, other in itertools.pairwise(order)) for order in orders])
    for order, found in zip(orders[::7], runs[::7], strict=True):
        expected = (found - runs.mean()) / runs.std()
        assert runs_z(np.array(order)) == pytest.approx(expected, abs=1e-4)


def test_the_runs_test_of_a_textbook():
    # Wald and Wolfowitz for two kinds: E = 1 + 2mn / (m + n), Var = 2mn (2mn - m - n) / ((m + n)^2 (m + n - 1)).
    kinds = np.array([1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0])
    m, n, runs = 9, 11, 10
    expected = 1 + 2 * m * n / (m + n)
    variance = 2 * m * n * (2 * m * n - m - n) / ((m + n) ** 2 * (m + n - 1))
    assert runs_z(kinds) == pytest.approx((runs - expected) / math.sqrt(variance), abs=1e-4)


def test_one_kind_or_none_alike_says_nothing():
    assert runs_z(np.zeros(50, np.int64)) is None
    assert runs_z(np.arange(50)) is None


@brief
@given(st.floats(0, 3000), st.integers(1, 2000))
def test_the_tail_of_chi_square_is_scipys(value, freedom):
    assert chi_square_tail(value, freedom) == pytest.approx(scipy.stats.chi2.sf(value, freedom), rel=1e-6, abs=1e-12)


def test_the_tail_of_chi_square_is_that_of_printed_tables():
    for value, freedom in ((3.841, 1), (5.991, 2), (18.307, 10), (124.342, 100)):
        assert chi_square_tail(value, freedom) == pytest.approx(0.05, abs=2e-5)


def test_the_mix_is_scipys_where_nothing_is_pooled():
    table = np.array([[40, 60, 33], [55, 41, 37], [30, 62, 48]])
    expected = scipy.stats.chi2_contingency(table, correction=False).pvalue
    assert mix_p(table) == pytest.approx(expected, rel=1e-3)


def test_small_shards_and_classes_are_pooled_with_their_neighbours():
    pooled = np.array([[30, 60], [70, 50]])
    table = np.array([[30, 60, 0], [10, 0, 0], [60, 49, 1]])
    assert mix_p(table) == mix_p(pooled)
    assert mix_p(np.array([[3, 4], [5, 2]])) is None
    assert mix_p(np.array([[100, 2], [100, 1]])) is None


def test_numbers_in_keys_count_by_value():
    keys = ["b/1", "a/10.jpg", "a/9.jpg", "a/x"]
    assert sorted(keys, key=natural_order) == ["a/9.jpg", "a/10.jpg", "a/x", "b/1"]
    assert source_halves(keys).tolist() == [1, 0, 0, 1]


def test_pairs_are_counted():
    assert cross_table(np.array([0, 0, 1]), np.array([1, 1, 0])).tolist() == [[0, 2], [1, 0]]
    assert number_kinds([b"b", b"a", b"b"]).tolist() == [1, 0, 1]


def write_state(root: Path, keys: list[str], *, shards: int) -> BuildFolder:
    """What a build leaves of one split, with the keys in this order and classes by their first letters."""
    folder = BuildFolder(root)
    folder.prepare(anew=True)
    schema = facts_schema(CONFIG, Content())
    for index, part in enumerate(np.array_split(np.array(keys), shards)):
        numbers = dict.fromkeys(("listed", "records", "bytes"), len(part))
        texts = dict.fromkeys(("sha256", "index_sha256", "inputs"), "")
        told: dict[str, dict[str, int]] = {name: {} for name in ("labels", "rejected", "formats")}
        receipt = Receipt("train", index, **numbers, **texts, **told, smallest=(1, 1), largest=(1, 1))
        facts, seen = RowWriter(schema), RowWriter(SEEN_SCHEMA)
        for key in part.tolist():
            facts.add(([0.0] * 3, [0.0] * 3, [key[:1].encode()]))
            row = {"key": key.encode(), "reason": ""}
            seen.add([row.get(name) for name in SEEN_SCHEMA.names])
        facts.save(folder.facts(receipt.shard))
        seen.save(folder.seen(receipt.shard))
        save_receipt(receipt, folder.receipt(receipt.shard))
    return folder


KEYS = [f"{label}/{number}.jpg" for label in "abcd" for number in range(500)]


def test_an_ordered_dataset_is_found_out(tmp_path):
    folder = write_state(tmp_path, KEYS, shards=10)
    (entry,) = measure_shuffle(["train"], load_receipts(folder), folder)
    assert (entry.split, entry.examples, entry.shards) == ("train", 2000, 10)
    assert entry.source_z < -40
    assert entry.class_z < -40
    assert entry.mix_p == 0
    assert not entry.is_random


def test_classes_that_take_turns_are_found_out(tmp_path):
    turns = [KEYS[place] for number in range(500) for place in range(number, 2000, 500)]
    (entry,) = measure_shuffle(["train"], load_receipts(folder := write_state(tmp_path, turns, shards=10)), folder)
    assert entry.class_z > 20
    assert entry.mix_p == 1.0
    assert not entry.is_random


@pytest.mark.parametrize("shuffled", ["hash", "random"])
def test_the_order_of_hashes_is_as_random_as_a_shuffle(tmp_path, shuffled):
    keys = sorted(KEYS, key=order_hash) if shuffled == "hash" else random.Random(5).sample(KEYS, len(KEYS))
    (entry,) = measure_shuffle(["train"], load_receipts(folder := write_state(tmp_path, keys, shards=10)), folder)
    assert None not in (entry.source_z, entry.class_z, entry.mix_p)
    assert entry.is_random


def test_over_many_datasets_chance_has_its_fair_share():
    # In a random order the p-values are spread evenly from 0 to 1: neither too good nor too bad.
    orders = [sorted((f"{salt}/{key}" for key in KEYS[::4]), key=order_hash) for salt in range(200)]
    classes = [number_kinds([key.split("/")[1].encode() for key in keys]) for keys in orders]
    owners = np.repeat(np.arange(5), 100)
    for found in (
        [two_sided(runs_z(source_halves(keys))) for keys in orders],
        [two_sided(runs_z(kinds)) for kinds in classes],
        [mix_p(cross_table(owners, kinds)) for kinds in classes],
    ):
        assert scipy.stats.kstest(found, "uniform").pvalue > 0.001


def two_sided(z: float | None) -> float:
    assert z is not None
    return math.erfc(abs(z) / math.sqrt(2))


def test_only_the_first_of_each_shard_are_looked_at_where_there_are_many(tmp_path):
    folder = write_state(tmp_path, sorted(KEYS, key=order_hash), shards=10)
    (entry,) = measure_shuffle(["train"], load_receipts(folder), folder, most=500)
    assert entry.examples == 500
    expected = [key for part in np.array_split(sorted(KEYS, key=order_hash), 10) for key in part[:50].tolist()]
    assert entry.source_z == runs_z(source_halves(expected))


def test_of_few_examples_nothing_is_said(tmp_path):
    folder = write_state(tmp_path, KEYS[:19], shards=2)
    (entry,) = measure_shuffle(["train"], load_receipts(folder), folder)
    assert (entry.source_z, entry.class_z, entry.mix_p) == (None, None, None)
    assert entry.is_random


def test_a_built_dataset_says_how_it_is_shuffled(built):
    train = built.manifest.shuffle[0]
    assert (train.split, train.examples) == ("train", built.manifest.split("train").records)
    assert train.source_z is not None
    assert train.is_random
    page = (built.root / "report.html").read_text()
    assert "<h2>Shuffle</h2>" in page
    assert f"<td class=number>{train.source_z:+.2f}</td>" in page
