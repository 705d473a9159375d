"""What inputs add up to beside a dataset that is there, and what is taken for a mistake."""

from collections import Counter
from typing import Any

import pytest
from conftest import make_config, make_ref
from hypothesis import given
from hypothesis import strategies as st

from pipelines.planning.listing import (
    Listing,
    check_removals,
    estimate_record_bytes,
    is_touched,
    needs_place,
    source_of,
)
from pipelines.planning.plan import Past, check_label_names, make_plan
from pipelines.values import RECORD, Before, Fault, InputRef, Location
from shards.errors import ShardsmithError, UsageError

CONFIG = make_config("raw", "out")
OLD = Before("train", 3, 7, source="old")


def known(key: str, dealt: str = "train", **fields: Any) -> InputRef:
    return make_ref(key, "a", size=100, before=OLD._replace(**fields), dealt=dealt)


def listing_of(*refs: InputRef) -> Listing:
    listing = Listing()
    for ref in refs:
        listing.add(ref, CONFIG)
    return listing


@pytest.mark.parametrize(
    ("ref", "place", "touched", "changes"),
    [
        (make_ref("new", "a", dealt="train"), True, None, {"added": 1}),
        (known("same"), False, False, {}),
        (known("changed", same=False), False, True, {"changed": 1}),
        (known("moved", dealt="test", same=False), True, True, {"changed": 1}),
        (known("gone", same=False, gone=True), False, True, {"removed": 1}),
        (known("beside", same=False, added=True), False, True, {"added": 1}),
        (known("merged", uprooted=True), True, True, {}),
        (known("no longer listed twice", reason="listed_twice"), False, True, {}),
        (known("listed twice")._replace(fault=Fault("listed_twice", "")), False, True, {}),
    ],
    ids=lambda value: value.key if isinstance(value, InputRef) else "",
)
def test_what_an_input_means_for_the_shards(ref, place, touched, changes):
    assert needs_place(ref) == place
    assert touched is None or is_touched(ref, ref.before) == touched
    listing = listing_of(ref)
    assert +listing.changes == Counter(changes)
    assert bool(listing.images) == place
    stays = ref.before is not None and not place and not ref.before.gone
    assert +listing.stays == Counter({("train", 3): 1} if stays else {})


def test_an_input_without_a_source_keeps_the_name_that_its_source_had():
    carried = known("k")._replace(location=Location("out/train/train-00003.tfrecord", 345, 2, coding=RECORD))
    assert source_of(carried, CONFIG) == "old"
    assert source_of(known("k"), CONFIG) == "default"
    assert estimate_record_bytes(carried, CONFIG.image) == 345
    listing = listing_of(carried, known("k"), make_ref("new", "a", dealt="test"))
    assert listing.sources == {("train", "old"): 1, ("train", "default"): 1, ("test", "default"): 1}
    plan = make_plan(listing, CONFIG, past=Past(labels=("a",), next_index={"train": 4}))
    assert {split.name: split.sources for split in plan.splits} == {
        "train": {"default": 1, "old": 1},
        "test": {"default": 1},
    }


@given(st.integers(1, 60), st.integers(0, 60), st.randoms())
def test_more_than_a_tenth_may_not_go_unasked(inputs, removed, chance):
    parts = [Listing() for _ in range(3)]
    for number in range(min(removed, inputs)):
        chance.choice(parts).add(known(f"k{number:02}", same=False, gone=True), CONFIG)
    listing = Listing()
    for part in parts:
        listing.merge(part)
    gone = min(removed, inputs)
    assert listing.gone == tuple(f"k{number:02}" for number in range(gone))[:3]
    if gone <= inputs / 10:
        check_removals(listing, inputs)
    else:
        with pytest.raises(ShardsmithError, match=f"^{gone} of the {inputs} inputs of the dataset"):
            check_removals(listing, inputs)


def test_the_guard_names_some_inputs_and_the_remedies():
    gone = [known(f"cat/{number}.jpg", same=False, gone=True) for number in range(1500)]
    with pytest.raises(ShardsmithError) as caught:
        make_plan(listing_of(make_ref("new", "a", dealt="train"), *gone), CONFIG, past=Past(inputs=12_000))
    assert str(caught.value) == (
        "1,500 of the 12,000 inputs of the dataset are no longer in the sources, such as cat/0.jpg, cat/1.jpg, "
        "cat/10.jpg; nothing was written. If a source is not mounted, or not named in the config, mend that; if the "
        "config names only what is new, add --keep-missing: what is no longer listed then stays; if these inputs shall "
        "leave the dataset, add --allow-removals"
    )
    make_plan(listing_of(make_ref("new", "a", dealt="train"), *gone), CONFIG, past=Past())  # --allow-removals


def test_label_names_may_only_grow():
    check_label_names((), ("cat", "dog"))
    check_label_names(("cat", "dog", "cow"), ("cat", "dog"))
    with pytest.raises(UsageError) as caught:
        check_label_names(("cat", "cow", "dog"), ("cat", "dog"))
    assert str(caught.value) == (
        "labels.names has 'cow' in line 2, but class 1 of the dataset is 'dog'; "
        "ids must stay: add new names at the end, or build again with --overwrite"
    )
    with pytest.raises(UsageError, match=r"labels\.names has nothing in line 2, but class 1 of the dataset is 'dog'"):
        check_label_names(("cat",), ("cat", "dog"))
