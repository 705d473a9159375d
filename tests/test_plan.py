"""Splits and shards are decided by pure functions; these tests need no pipeline."""

from collections import Counter

import pytest
from conftest import make_config, make_ref
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import ShardsConfig, SplitsConfig
from pipelines.planning.listing import Listing, estimate_record_bytes
from pipelines.planning.plan import make_plan
from pipelines.planning.ranges import choose_ranges, cut_evenly, range_weights
from pipelines.planning.splits import choose_split, deal, order_hash, stable_hash
from pipelines.values import InputRef
from shards.errors import UsageError


def ref(number: int, *, label: str = "class", size: int = 1000, **fields: object) -> InputRef:
    return make_ref(f"class/{number:06d}.jpg", label, "", size, **fields)


def plan_of(refs: list[InputRef], **sections: object):
    config = make_config("raw", "out", **sections)
    listing = Listing()
    for one in refs:
        listing.add(deal(one, config.splits), config)
    return make_plan(listing, config)


def test_the_hash_never_changes():
    # Published datasets depend on these values: another number here moves examples between splits and shards.
    assert stable_hash("cat/001.jpg", salt="") == 0x9CFBAE39A59E8E8F
    assert order_hash("cat/001.jpg") == 0x50CDA04D767651E1


def test_fractions_are_met_and_sum_up():
    splits = SplitsConfig(fractions={"train": 0.8, "validation": 0.15, "test": 0.05})
    counts = Counter(choose_split(ref(number), splits) for number in range(20_000))
    assert counts["train"] / 20_000 == pytest.approx(0.8, abs=0.01)
    assert counts["validation"] / 20_000 == pytest.approx(0.15, abs=0.01)
    assert counts["test"] / 20_000 == pytest.approx(0.05, abs=0.01)


def test_a_split_of_fraction_zero_stays_empty():
    splits = SplitsConfig(fractions={"train": 1.0, "test": 0.0})
    assert {choose_split(ref(number), splits) for number in range(1000)} == {"train"}


def test_salt_moves_examples():
    old, new = SplitsConfig(), SplitsConfig(salt="other")
    assert any(choose_split(ref(n), old) != choose_split(ref(n), new) for n in range(100))


def test_a_group_stays_together():
    splits = SplitsConfig()
    assert len({choose_split(ref(number, group="patient 7"), splits) for number in range(100)}) == 1
    assert len({choose_split(ref(number, group=f"patient {number}"), splits) for number in range(100)}) == 3


def test_the_source_decides_unless_told_otherwise():
    given_split = ref(1, split="holdout")
    assert choose_split(given_split, SplitsConfig()) == "holdout"
    assert choose_split(given_split, SplitsConfig(use_given=False)) in ("train", "validation", "test")


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.integers(1, 50))
def test_cuts_are_ordered_and_none_is_empty(weights, count):
    prefixes = [7 * number for number in range(len(weights))]
    starts = cut_evenly(prefixes, weights, count=count)
    assert len(starts) == min(count, len(weights))
    assert starts[0] == 0
    assert list(starts) == sorted(set(starts))
    assert min(range_weights(prefixes, weights, starts)) > 0
    assert sum(range_weights(prefixes, weights, starts)) == sum(weights)


@given(st.lists(st.integers(1, 500_000), min_size=1, max_size=300), st.floats(0.01, 5))
def test_no_shard_is_planned_above_the_target(weights, target_mb):
    # TFDS ignores its own limits (its calculation reads class attributes); ours are obeyed, whatever the sizes.
    prefixes = list(range(len(weights)))
    starts = choose_ranges("train", prefixes, weights, images=len(weights), config=ShardsConfig(target_mb=target_mb))
    assert max(range_weights(prefixes, weights, starts)) <= max(round(target_mb * 1e6), max(weights))


@pytest.mark.parametrize(
    ("config", "shards"),
    [
        ({"target_mb": 0.5}, 3),  # 1,000 records of about 1.2 kB
        ({"target_mb": 0.1}, 13),
        ({"target_mb": 100}, 1),
        ({"target_mb": 100, "min_count": 8}, 8),
        ({"count": 5}, 5),
        ({"count": {"train": 7}}, 7),
    ],
)
def test_shard_count_follows_the_config(config, shards):
    plan = plan_of([ref(n) for n in range(1000)], splits={"fractions": {"train": 1.0}}, shards=config)
    assert len(plan.shards) == shards


def test_shards_are_even():
    plan = plan_of([ref(n) for n in range(1000)], splits={"fractions": {"train": 1.0}}, shards={"count": 10})
    counts = Counter(plan.splits[0].shard_of(ref(n)).index for n in range(1000))
    assert set(counts) == set(range(10))
    assert max(counts.values()) - min(counts.values()) <= 3


def test_more_shards_than_images_is_refused():
    with pytest.raises(UsageError, match="shards.count asks for 64 shards, but train has 10 images; ask for fewer"):
        plan_of([ref(n) for n in range(10)], splits={"fractions": {"train": 1.0}}, shards={"count": 64})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"transform": {"analyze": ["trian"]}}, "transform.analyze names split 'trian'; this dataset has train"),
        ({"shards": {"count": {"test": 2}}}, "shards.count names split 'test'; this dataset has train"),
    ],
)
def test_settings_for_unknown_splits_are_refused(section, message):
    with pytest.raises(UsageError, match=message):
        plan_of([ref(1)], splits={"fractions": {"train": 1.0}}, **section)


def test_labels_are_sorted_and_splits_in_config_order():
    refs = [
        ref(n, label=label, split=split)
        for n, (label, split) in enumerate([("b", "zoo"), ("a", "test"), ("c", "train")])
    ]
    plan = plan_of(refs)
    assert plan.labels == ("a", "b", "c")
    assert plan.label_counts == {"a": 1, "b": 1, "c": 1}
    assert [split.name for split in plan.splits] == ["train", "test", "zoo"]
    assert [shard.name for shard in plan.shards] == ["train/train-00000", "test/test-00000", "zoo/zoo-00000"]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=60, unique=True), st.integers(1, 6))
def test_the_plan_does_not_depend_on_the_order_of_the_listing(keys, parts):
    refs = [make_ref(key, "class", size=len(key) * 1000) for key in keys]
    config = make_config("raw", "out", shards={"target_mb": 0.005})
    listings = [Listing() for _ in range(parts)]
    for number, one in enumerate(reversed(refs)):
        listings[number % parts].add(deal(one, config.splits), config)
    total = Listing()
    for listing in listings:
        total.merge(listing)
    assert make_plan(total, config) == plan_of(refs, shards={"target_mb": 0.005})


@pytest.mark.parametrize(
    ("image", "low", "high"),
    [
        ({}, 1000, 1300),  # stored about as it is
        ({"resize": "exact:256"}, 30_000, 36_000),
        ({"resize": "exact:256", "encode": {"quality": 75}}, 9_000, 11_000),
        ({"resize": "exact:256", "encode": {"format": "png"}}, 130_000, 135_000),
        ({"resize": "keep_ratio:256"}, 40_000, 48_000),
        ({"resize": "exact:256:only_if_larger"}, 1000, 1300),
    ],
)
def test_estimates_follow_what_will_be_stored(image, low, high):
    config = make_config("raw", "out", image=image)
    assert low <= estimate_record_bytes(ref(1), config.image) <= high
