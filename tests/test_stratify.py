"""Stratified splits: every class keeps to the fractions, whatever came before and in whatever order it comes."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_config, make_ref
from hypothesis import given
from hypothesis import strategies as st
from pictures import encoded, picture
from shards_data import brief, thorough
from test_splits import run_dealing
from test_update import LOCAL, examples_of, run_append, run_build

from pipelines.config import BuildConfig, SplitsConfig
from pipelines.planning.dealing import cut_strata
from pipelines.planning.splits import choose_split, deal_unit, is_tied, unit_of
from pipelines.planning.stratify import (
    Cut,
    Stratum,
    Unit,
    allot,
    describe_unit,
    fill_up,
    find_cuts,
    find_starts,
    is_cut,
    side_of,
    stratum_of,
)
from pipelines.repair import repair
from pipelines.values import Before, InputRef
from shards.errors import UsageError
from shards.files import hash_file
from shards.verify import verify

THIRDS = {"train": 0.7, "validation": 0.2, "test": 0.1}
SPLITS = SplitsConfig(fractions=THIRDS, stratify=True)


def in_units(refs: Iterable[InputRef]) -> list[list[InputRef]]:
    units: defaultdict[str, list[InputRef]] = defaultdict(list)
    for number, ref in enumerate(refs):
        units[unit_of(ref) if is_tied(ref) else f"alone {number}"].append(ref)
    return list(units.values())


def deal_all(
    refs: Sequence[InputRef], splits: SplitsConfig, *, parts: int = 1, counts: Mapping[str, int] | None = None
) -> list[InputRef]:
    """What the pipeline does, without a pipeline; the units are counted in several parts that are then merged."""
    units = [(unit, describe_unit(unit, splits, counts or {})) for unit in in_units(refs)]
    strata: dict[str, Stratum] = {}
    for part in range(parts):
        for _, unit in units[part::parts]:
            mine = Stratum().add(unit)
            strata[unit.stratum] = mine.merge(strata[unit.stratum]) if unit.stratum in strata else mine
    cuts = cut_strata(strata, splits)
    starts = {
        name: find_starts(
            cuts[name], [(u.position, u.free) for _, u in units if u.stratum == name and is_cut(u, cuts[name])]
        )
        for name in cuts
    }
    return [ref for unit, told in units for ref in deal_unit(unit, splits, side_of(told, starts, splits))]


def shares(dealt: Iterable[InputRef]) -> dict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for ref in dealt:
        found[ref.labels[0]][ref.dealt] += 1
    return found


def some_refs(sizes: Mapping[str, int], salt: str = "") -> list[InputRef]:
    return [make_ref(f"{label}/{salt}{number}", label) for label, size in sizes.items() for number in range(size)]


SIZES = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), min_size=1)
FRACTIONS = (
    st.lists(st.integers(0, 20), min_size=1, max_size=4)
    .filter(any)
    .map(lambda parts: {f"s{number}": part / sum(parts) for number, part in enumerate(parts)})
)


@thorough
@given(SIZES, FRACTIONS)
def test_every_class_keeps_to_the_fractions_to_within_one_example(sizes, fractions):
    splits = SplitsConfig(fractions=fractions)
    dealt = deal_all(some_refs(sizes), splits)
    for label, found in shares(dealt).items():
        for split, fraction in fractions.items():
            assert abs(found[split] - fraction * sizes[label]) < 1 + 1e-9
    totals = Counter(ref.dealt for ref in dealt)
    for split, fraction in fractions.items():
        assert abs(totals[split] - fraction * len(dealt)) <= len(fractions)


def test_classes_of_few_examples_do_not_all_round_to_the_largest_split():
    found = Counter(ref.dealt for ref in deal_all(some_refs({f"{n:03}": 3 for n in range(100)}), SPLITS))
    assert found == {"train": 210, "validation": 60, "test": 30}


@thorough
@given(SIZES, st.integers(2, 7), st.randoms(use_true_random=False))
def test_neither_order_nor_number_of_partitions_matters(sizes, parts, shuffle):
    refs = some_refs(sizes)
    expected = {ref.key: ref.dealt for ref in deal_all(refs, SPLITS)}
    shuffle.shuffle(refs)
    assert {ref.key: ref.dealt for ref in deal_all(refs, SPLITS, parts=parts)} == expected


VERSION = st.tuples(SIZES, st.integers(0, 100))  # what is added, and how many percent of the rest are removed


@brief
@given(st.lists(VERSION, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_no_old_example_ever_moves_and_new_ones_close_the_gap(versions, choice):
    there: dict[str, InputRef] = {}
    for number, (added, removed) in enumerate(versions):
        for key in choice.sample(sorted(there), len(there) * removed // 100):
            del there[key]
        old = [ref._replace(dealt="", before=Before(ref.dealt, 0, 1)) for ref in there.values()]
        had = shares(there.values())
        dealt = deal_all([*old, *some_refs(added, f"{number} ")], SPLITS)
        assert all(ref.dealt == ref.before.split for ref in dealt if ref.before)
        for label, found in shares(dealt).items():
            total = sum(found.values())
            for split, fraction in THIRDS.items():
                # Nobody gets more than its share who has it already, and nobody is left short by a whole example
                # unless another split holds too much that it cannot give away.
                assert found[split] <= max(had[label][split], fraction * total + 1)
            if all(had[label][split] <= fraction * total for split, fraction in THIRDS.items()):
                assert all(abs(found[split] - f * total) < 1 + 1e-9 for split, f in THIRDS.items())
        there = {ref.key: ref for ref in dealt}


@brief
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), min_size=1, max_size=60))
def test_groups_stay_whole_and_miss_the_fractions_by_no_more_than_the_largest(groups):
    refs = [make_ref(f"{g}/{n}", label, group=f"g{g}") for g, (label, size) in enumerate(groups) for n in range(size)]
    dealt = deal_all(refs, SPLITS)
    assert len({(ref.group, ref.dealt) for ref in dealt}) == len(groups)
    for label, found in shares(dealt).items():
        largest = max(size for other, size in groups if other == label)
        for split, fraction in THIRDS.items():
            assert abs(found[split] - fraction * sum(found.values())) < largest + 1


def test_a_group_with_old_members_follows_them_and_counts_as_theirs():
    old = [make_ref(f"old {n}", "a", before=Before("train", 0, 1), group="g" if n < 3 else "") for n in range(10)]
    new = [make_ref(f"new {n}", "a", group="g") for n in range(20)]
    rest = some_refs({"a": 70})
    dealt = deal_all([*old, *new, *rest], SPLITS)
    assert {ref.dealt for ref in dealt if ref.group} == {"train"}
    assert shares(dealt)["a"] == {"train": 70, "validation": 20, "test": 10}


def test_given_splits_stay_and_do_not_count():
    given_side = [make_ref(f"given {n}", "a", split="test") for n in range(50)]
    faulty = [make_ref(f"bad {n}", "a", fault=("unreadable", "gone")) for n in range(9)]
    dealt = deal_all([*given_side, *some_refs({"a": 100}), *faulty], SPLITS)
    assert {ref.dealt for ref in dealt if ref.split} == {"test"}
    assert shares(ref for ref in dealt if not ref.split and not ref.fault)["a"] == {
        "train": 70,
        "validation": 20,
        "test": 10,
    }


def test_the_stratum_of_a_unit_is_its_most_frequent_label_and_of_equals_the_first_by_name():
    refs = [make_ref("1", "b"), make_ref("2", "a"), make_ref("3", "b"), make_ref("4", "c")]
    assert describe_unit(refs, SPLITS, {}).stratum == "b"
    assert describe_unit(refs[:2], SPLITS, {}).stratum == "a"
    assert describe_unit(refs, SPLITS, {}).free == 4


def test_of_several_labels_the_rarest_counts():
    ref = make_ref("1", labels=("sky", "sea", "cat"))
    assert stratum_of(ref, {"sky": 9, "sea": 2, "cat": 2}) == "cat"
    assert stratum_of(make_ref("1"), {}) == ""


def test_a_stratum_without_free_inputs_has_no_starts():
    assert cut_strata({"a": Stratum().add(Unit("a", 0, 0, (("train", 5),)))}, SPLITS) == {}
    assert side_of(Unit("a", 0, 0), {}, SPLITS) == ""


def test_what_is_lacking_is_filled_up_and_nothing_is_taken_away():
    tenth = Fraction(1, 10)
    assert fill_up(10, [0, 0], [9 * tenth, tenth]) == [9, 1]
    assert fill_up(10, [90, 0], [9 * tenth, tenth]) == [0, 10]
    assert fill_up(10, [0, 50], [5 * tenth, 5 * tenth]) == [10, 0]
    assert fill_up(0, [3, 0], [9 * tenth, tenth]) == [0, 0]


def test_shares_are_rounded_so_that_strata_even_each_other_out():
    strata = {name: Stratum().add(Unit(name, 0, 1)) for name in "abcd"}
    assert list(allot(strata, {"x": 0.5, "y": 0.5}).values()) == [(1, 0), (0, 1), (1, 0), (0, 1)]
    assert allot({"a": Stratum().add(Unit("a", 0, 29))}, {"x": 0.29, "y": 0.71}) == {"a": (8, 21)}


def test_a_cut_lies_exactly_between_two_units():
    positions = [5, 1 << 56, (1 << 56) + 1, (1 << 56) + 7, 3 << 60]
    stratum = Stratum()
    for position in positions:
        stratum.add(Unit("a", position, 1))
    cuts = find_cuts(stratum, (3, 2))
    assert cuts == (Cut(1, 2),)
    assert [is_cut(Unit("a", position, 1), cuts) for position in positions] == [False, True, True, True, False]
    assert find_starts(cuts, [(position, 1) for position in reversed(positions[1:4])]) == ((1 << 56) + 7,)
    assert find_starts(find_cuts(stratum, (1, 4)), []) == (1 << 56,)  # at the beginning of a bin nothing need be known
    assert find_starts(find_cuts(stratum, (5, 0)), []) == (1 << 64,)


def test_bins_are_counted_together():
    rows = np.random.default_rng(1).integers(0, 2**63, 1000).tolist()
    whole, one, other = Stratum(), Stratum(), Stratum()
    for number, position in enumerate(rows):
        unit = Unit("a", position, 2, (("train", 1),))
        whole.add(unit)
        (one if number % 3 else other).add(unit)
    assert one.merge(other).free.tolist() == whole.free.tolist()
    assert one.bound == whole.bound == {"train": 1000}


def test_the_pipeline_deals_what_the_functions_say():
    config = make_config("raw", "out", splits={"fractions": THIRDS, "stratify": True})
    sizes = {"cat": 60, "dog": 31, "owl": 3}
    refs = some_refs(sizes)
    refs += [make_ref(f"g{n}", "dog", group=f"group {n % 5}") for n in range(15)]
    refs += [make_ref(f"old {n}", "cat", before=Before("test", 0, 1)) for n in range(5)]
    refs += [make_ref("bad", "", fault=("bad_row", "no label"))]
    random.Random(1).shuffle(refs)
    found = run_dealing(refs, config)
    assert found == {ref.key: ref.dealt for ref in deal_all(refs, config.splits)}
    assert found["bad"] == choose_split(make_ref("bad"), config.splits)
    cats = Counter(found[ref.key] for ref in refs if ref.labels == ("cat",))
    assert [abs(cats[split] - 65 * fraction) < 1 for split, fraction in THIRDS.items()] == [True, True, True]


def test_the_pipeline_stratifies_several_labels_by_the_rarest():
    config = make_config("raw", "out", labels={"kind": "multi"}, splits={"fractions": THIRDS, "stratify": True})
    refs = [make_ref(str(n), labels=("common", "rare") if n < 10 else ("common",)) for n in range(100)]
    found = run_dealing(refs, config)
    assert Counter(found[str(n)] for n in range(10)) == {"train": 7, "validation": 2, "test": 1}
    assert Counter(found.values()) == {"train": 70, "validation": 20, "test": 10}


@pytest.mark.parametrize("kind", ["none", "regression"])
def test_without_classes_there_is_nothing_to_stratify(kind):
    told = f"splits.stratify needs classes, labels of kind {kind} have none; remove it"
    with pytest.raises(UsageError, match=told):
        make_config("raw", "out", labels={"kind": kind}, splits={"stratify": True})


def write_pictures(root: Path, counts: dict[str, int], *, first: int = 0, groups: int = 1000) -> Path:
    """Files whose names tell the class, the group and a number."""
    root.mkdir(exist_ok=True)
    for label, count in counts.items():
        for number in range(first, first + count):
            name = f"{label}-{label}{number % groups}-{number}.png"
            (root / name).write_bytes(encoded(picture(number * 10 + ord(label[0])), "png"))
    return root


def stratified(
    source: Path,
    out: Path,
    pattern: str = r"^(?P<label>\w+)-",
    *,
    fractions: Mapping[str, float] = THIRDS,
    **sections: Any,
) -> BuildConfig:
    """A config for what `write_pictures` writes."""
    splits = {"fractions": fractions, "stratify": True}
    return make_config(
        source, out, source={"label_pattern": pattern}, splits=splits, image={"resize": "exact:16"}, **sections
    )


def sides_of(root: Path) -> dict[str, str]:
    return {key: split for split, records in examples_of(root).items() for key in records}


def test_a_build_and_what_is_appended_keep_to_the_fractions(tmp_path):
    source = write_pictures(tmp_path / "raw", {"cat": 20, "dog": 13})
    config = stratified(source, tmp_path / "out")
    manifest = run_build(config)
    assert [split.labels["cat"] for split in manifest.splits] == [14, 4, 2]
    assert all(abs(manifest.split(name).labels["dog"] - f * 13) < 1 for name, f in THIRDS.items())
    old = sides_of(tmp_path / "out")
    write_pictures(source, {"cat": 30, "owl": 10}, first=20)
    manifest = run_append(config)
    assert [split.labels["cat"] for split in manifest.splits] == [35, 10, 5]
    assert [split.labels["owl"] for split in manifest.splits] == [7, 2, 1]
    assert old.items() <= sides_of(tmp_path / "out").items()


def test_groups_by_a_pattern_stay_whole_over_an_append(tmp_path):
    source = write_pictures(tmp_path / "raw", {"cat": 20}, groups=5)
    pattern = r"^(?P<label>\w+)-(?P<group>\w+)-"
    config = stratified(source, tmp_path / "out", pattern, fractions={"train": 0.6, "test": 0.4})
    run_build(config)
    old = sides_of(tmp_path / "out")
    write_pictures(source, {"cat": 20}, first=20, groups=5)
    manifest = run_append(config)
    new = sides_of(tmp_path / "out")
    assert len({(key.split("-")[1], side) for key, side in new.items()}) == 5
    assert old.items() <= new.items()
    assert manifest.leaks.group == 0
    assert [split.records for split in manifest.splits] == [24, 16]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_lost_shard_is_made_again_from_what_no_other_shard_has(tmp_path, index):
    source = write_pictures(tmp_path / "raw", {"cat": 40, "dog": 23})
    config = stratified(source, tmp_path / "out", shards={"target_mb": 0.01})
    run_build(config)
    write_pictures(source, {"cat": 30, "owl": 10}, first=40)
    shards = run_append(config).split("train").shards
    assert len(shards) == 3
    (tmp_path / "out" / shards[index].path).unlink()
    (tmp_path / "out" / "state" / "seen" / f"train-0000{index}.arrow").unlink()
    repair(config, options=LOCAL)
    assert hash_file(tmp_path / "out" / shards[index].path) == shards[index].sha256
    assert verify(tmp_path / "out") == []
