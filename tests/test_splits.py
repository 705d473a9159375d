"""Who belongs together is never parted, and what the dataset has never moves."""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that
from conftest import make_config, make_ref
from hypothesis import given
from hypothesis import strategies as st
from shards_data import brief

from pipelines.config import BuildConfig, SplitsConfig
from pipelines.planning.dealing import DealSplits
from pipelines.planning.splits import bound_side, choose_split, deal, deal_unit, follow_side, is_tied
from pipelines.runner import parse_beam_options
from pipelines.values import Before, InputRef

SPLITS = SplitsConfig(fractions={"train": 0.6, "test": 0.4})


def before(split: str, **fields: object) -> Before:
    return Before(split, 0, 1)._replace(**fields)


def run_dealing(refs: Sequence[InputRef], config: BuildConfig) -> dict[str, str]:
    """The split of every key, as the pipeline deals it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "dealt.json"  # what a pipeline is given is a copy, so it cannot fill a dict of ours
        with beam.Pipeline(options=parse_beam_options([], ours=())) as pipeline:
            dealt = pipeline | beam.Create(list(refs)).with_output_types(InputRef) | DealSplits(config)
            assert_that(dealt, lambda dealt: path.write_text(json.dumps({ref.key: ref.dealt for ref in dealt})))
        found: dict[str, str] = json.loads(path.read_text())
    assert len(found) == len(refs)
    return found


def test_what_binds_an_input_to_a_side():
    assert bound_side(make_ref("a"), SPLITS) == ""
    assert bound_side(make_ref("a", before=before("test")), SPLITS) == "test"
    assert bound_side(make_ref("a", before=before("test"), split="train"), SPLITS) == "train"
    assert bound_side(make_ref("a", before=before("test"), split="train", dealt="x"), SPLITS) == "x"
    ignoring = SPLITS.model_copy(update={"use_given": False})
    assert bound_side(make_ref("a", before=before("test"), split="train"), ignoring) == "test"


def test_an_input_that_is_gone_ties_nobody():
    assert is_tied(make_ref("a", group="g"))
    assert is_tied(make_ref("a", unit="u"))
    assert not is_tied(make_ref("a"))
    assert not is_tied(make_ref("a", group="g", before=before("train", gone=True)))


def test_the_unbound_follow_the_most_and_of_equals_the_first_by_name():
    refs = [make_ref("a", split="train"), make_ref("b", split="test"), make_ref("c")]
    assert follow_side(refs, SPLITS) == "test"
    assert follow_side([*refs, make_ref("d", before=before("train"))], SPLITS) == "train"
    assert follow_side([make_ref("c")], SPLITS) == ""


def test_a_new_member_follows_its_group_wherever_the_hash_points():
    names = [f"g{number}" for number in range(50)]
    for side in ("train", "test"):
        units = [[make_ref(f"{g}/old", group=g, before=before(side)), make_ref(f"{g}/new", group=g)] for g in names]
        assert {ref.dealt for unit in units for ref in deal_unit(unit, SPLITS)} == {side}
    assert {choose_split(make_ref("x", group=name), SPLITS) for name in names} == {"train", "test"}


def test_who_is_bound_stays_even_where_its_group_is_elsewhere():
    unit = [make_ref("a", group="g", before=before("test")), make_ref("b", group="g", split="train"), make_ref("c")]
    assert [ref.dealt for ref in deal_unit(unit, SPLITS)] == ["test", "train", "test"]


def test_a_unit_of_strangers_is_dealt_by_its_own_hash():
    unit = [make_ref(str(number), group=f"g{number}", unit="cluster") for number in range(5)]
    expected = deal(make_ref("cluster"), SPLITS).dealt
    assert {ref.dealt for ref in deal_unit(unit, SPLITS)} == {expected}


def test_the_pipeline_keeps_groups_and_duplicates_whole():
    config = make_config("raw", "out", splits={"fractions": {"train": 0.5, "test": 0.5}})
    groups = [make_ref(f"{g}/{n}", group=f"g{g}") for g in range(20) for n in range(3)]
    given_side = [make_ref(f"{g}/given", group=f"g{g}", split=["train", "test"][g % 2]) for g in range(10)]
    had = [make_ref(f"{g}/had", group=f"g{g}", before=before(["test", "train"][g % 2])) for g in range(10, 20)]
    # Duplicates tie g20 to g21; the dataset has one of them.
    twins = [make_ref("t1", group="g20", unit="u"), make_ref("t2", group="g21", unit="u", dealt="test")]
    alone = [make_ref(f"alone {n}") for n in range(50)]
    found = run_dealing([*groups, *given_side, *had, *twins, *alone], config)
    for g in range(10):
        assert {found[f"{g}/{n}"] for n in range(3)} == {["train", "test"][g % 2]}
    for g in range(10, 20):
        assert {found[f"{g}/{n}"] for n in range(3)} == {["test", "train"][g % 2]}
    assert found["t1"] == found["t2"] == "test"
    assert all(found[ref.key] == choose_split(ref, config.splits) for ref in alone)


KEYS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 4), st.booleans()), max_size=40, unique_by=lambda row: row[0]
)


@brief
@given(st.lists(KEYS, min_size=2, max_size=4))
def test_no_old_example_ever_moves_and_no_group_is_cut(versions):
    sides: dict[str, str] = {}
    for inputs in versions:
        refs = [make_ref(f"{key}", group=f"g{group}" if grouped else "") for key, group, grouped in inputs]
        told = [ref._replace(before=before(sides[ref.key])) if ref.key in sides else ref for ref in refs]
        units: dict[str, list[InputRef]] = {}
        for ref in told:
            units.setdefault(ref.group or f"key {ref.key}", []).append(ref)
        dealt = [ref for unit in units.values() for ref in deal_unit(unit, SPLITS)]
        assert all(ref.dealt == sides.get(ref.key, ref.dealt) for ref in dealt)
        for ref in dealt:
            # An input that came into another group later is the one thing that can part a group.
            newcomers = {one.dealt for one in dealt if one.group and one.group == ref.group and one.key not in sides}
            assert len(newcomers) <= 1
        sides |= {ref.key: ref.dealt for ref in dealt}


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_a_unit_does_not_matter(order):
    unit = [make_ref("a", split="train"), make_ref("b", split="test"), make_ref("c"), make_ref("d")][::order]
    assert Counter(ref.dealt for ref in deal_unit(unit, SPLITS)) == {"test": 3, "train": 1}
