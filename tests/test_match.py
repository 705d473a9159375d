"""New versions meet the old: whatever is added, removed or changed, what stays lies where it lay and is not read."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import make_config, make_ref
from hypothesis import given, settings
from hypothesis import strategies as st
from versions import State, Thing, Versions, refs_of, text_of

from pipelines.planning.splits import choose_split
from pipelines.values import Before, Fault, InputRef, Location, PlannedShard
from pipelines.versions.match import Known, match_inputs, match_key, read_past
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.seen import Identities

CONFIG = make_config("raw", "out")
THINGS = st.builds(
    Thing,
    label=st.sampled_from("abc"),
    modified=st.integers(1, 2),
    split=st.sampled_from(["", "", "", "train", "holdout"]),
    group=st.sampled_from(["", "", "g1", "g2"]),
    copies=st.sampled_from([("",), ("",), ("",), ("", "-twin"), ("-twin",)]),
    broken=st.sampled_from([False, False, False, True]),
)
STATES = st.dictionaries(st.integers(0, 25).map("k{:02}".format), THINGS, max_size=20)


def expected_records(state: State, labels: tuple[str, ...]) -> set[str]:
    """What the records of a state say: of several copies the first counts."""
    return {
        text_of(refs_of({key: thing})[0], (labels.index(thing.label),))
        for key, thing in state.items()
        if not thing.broken
    }


def expected_split(key: str, thing: Thing, before: dict[str, str], dataset: Versions) -> str:
    """The split that the source gives, else the one that the example has, else the one of its hash."""
    return thing.split or before.get(key) or choose_split(refs_of({key: thing})[0], dataset.config.splits)


def changed_records(before: State, after: State) -> set[str]:
    """The keys whose record, or reject, is another one: that of its first copy."""
    old, new = (
        {key: each._replace(copies=each.copies[:1]) for key, each in state.items()} for state in (before, after)
    )
    return {key for key in new if old.get(key) != new[key]}


def unchanged_rejects(before: State, after: State) -> set[str]:
    """The keys of rejects that are what they were; these are tried again where their shard is made again."""
    return {key for key in after.keys() - changed_records(before, after) if after[key].broken}


@settings(max_examples=20, deadline=None)
@given(st.lists(STATES, min_size=2, max_size=5), st.sampled_from([1, 7, 50_000]))
def test_whatever_comes_and_goes_what_stays_stays(states, bucket_inputs):
    with tempfile.TemporaryDirectory() as base, pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.versions.match.BUCKET_INPUTS", bucket_inputs)
        dataset, before, names = Versions(Path(base) / "out"), {}, set()
        splits: dict[str, str] = {}
        for state in (state for state in states if state):
            files, ids = dataset.shard_files, dataset.labels
            plan, maker = dataset.update(state)
            assert dataset.labels[: len(ids)] == ids
            # The records are exactly the inputs, each in the split that it had.
            assert set(dataset.splits) == expected_records(state, dataset.labels)
            splits = {key: expected_split(key, thing, splits, dataset) for key, thing in state.items()}
            assert {record.split()[0]: split for record, split in dataset.splits.items()} == {
                key: split for key, split in splits.items() if not state[key].broken
            }
            assert len(dataset.rejects) == sum(len(each.copies) - (not each.broken) for each in state.values())
            # Only what is new or changed was opened, and no shard that stays was touched.
            assert maker.asked - unchanged_rejects(before, state) == changed_records(before, state)
            kept = {name: found for name, found in dataset.shard_files.items() if name in files}
            assert kept == {name: files[name] for name in kept}
            # No name is used twice.
            assert not (dataset.shard_files.keys() - files.keys()) & names
            names |= dataset.shard_files.keys()
            assert plan.changes.removed == sum(len(each.copies) for key, each in before.items() if key not in state) + (
                sum(max(0, len(before[key].copies) - len(state[key].copies)) for key in state if key in before)
            )
            before = state


@settings(max_examples=10, deadline=None)
@given(st.lists(STATES.filter(bool), min_size=2, max_size=4))
def test_what_is_no_longer_listed_can_stay(states):
    with tempfile.TemporaryDirectory() as base:
        dataset, all_so_far, splits = Versions(Path(base) / "out"), {}, {}
        for state in states:
            plan, maker = dataset.update(state, keep_missing=True)
            before, all_so_far = all_so_far, all_so_far | state
            assert set(dataset.splits) == expected_records(all_so_far, dataset.labels)
            splits |= {key: expected_split(key, thing, splits, dataset) for key, thing in state.items()}
            assert {record.split()[0]: split for record, split in dataset.splits.items()} == {
                key: split for key, split in splits.items() if not all_so_far[key].broken
            }
            assert maker.asked - unchanged_rejects(before, all_so_far) == changed_records(before, all_so_far)
            listed = sum(sum(split.sources.values()) for split in plan.splits)
            assert listed == sum(len(thing.copies) for thing in all_so_far.values())
            assert not plan.changes.removed or any(len(before[key].copies) > 1 for key in before.keys() & state.keys())


@settings(max_examples=10, deadline=None)
@given(STATES.filter(bool), STATES, st.booleans())
def test_the_number_of_buckets_decides_nothing(old, new, keep_missing):
    with tempfile.TemporaryDirectory() as base, pytest.MonkeyPatch.context() as patch:
        dataset = Versions(Path(base) / "out")
        dataset.update(old)
        found = []
        for inputs in (50_000, 5, 2, 1):
            patch.setattr("pipelines.versions.match.BUCKET_INPUTS", inputs)
            found.append(sorted(dataset.match(new, keep_missing=keep_missing), key=repr))
        listed = sum(len(each.copies) for each in old.values())
        assert Known.of(dataset.root).buckets == 1 + listed
        assert found[0] == found[1] == found[2] == found[3]
        assert len(found[0]) >= len(refs_of(new))


def before(identity: int, **fields: object) -> Before:
    return Before("train", 3, identity)._replace(**fields)


def matched(refs: list[InputRef], befores: list[Before], identities: list[int], **options: bool) -> list[InputRef]:
    return list(match_key(refs, befores, identities, **{"retry": False} | options))


def test_an_input_is_the_same_or_changed():
    ref = make_ref("k")
    assert matched([ref], [before(7)], [7]) == [ref._replace(before=before(7))]
    assert matched([ref], [before(7)], [8]) == [ref._replace(before=before(7, same=False))]
    assert matched([ref], [], [7]) == [ref]


def test_a_reject_is_tried_again_without_counting_as_changed():
    ref, rejected = make_ref("k"), before(7, reason="truncated")
    assert matched([ref], [rejected], [7]) == [ref._replace(before=rejected)]
    assert matched([ref], [rejected], [7], retry=True) == [ref._replace(before=rejected._replace(again=True))]
    for reason in ("duplicate_key", "listed_twice"):  # to try these again would change nothing
        other = before(7, reason=reason)
        assert matched([ref], [other], [7], retry=True) == [ref._replace(before=other)]


def test_of_several_of_a_key_each_finds_the_one_that_it_was():
    one, two = make_ref("k", path="1"), make_ref("k", path="2")
    train, test = before(7), before(8)._replace(split="test")
    assert matched([one, two], [test, train], [7, 8]) == [one._replace(before=train), two._replace(before=test)]
    # The one that changed may not take the place of the one that did not.
    found = matched([one, two], [train, test], [1, 7])
    assert found == [two._replace(before=train._replace(same=False)), one._replace(before=test._replace(same=False))]


def test_one_too_many_goes_where_the_others_are():
    one, two = make_ref("k", path="1"), make_ref("k", path="2", split="test")
    first, second = before(7), before(9)._replace(split="test", shard=5)
    found = matched([one, two], [first], [7, 8])
    assert found[0].before == first._replace(same=False)
    assert found[1].before == Before("train", 3, 8, same=False, added=True)
    three = make_ref("k", path="3")
    found = matched([one, two, three], [first, second], [7, 8, 9])
    assert {ref.location.path: ref.before and ref.before.shard for ref in found} == {"1": 3, "2": 5, "3": 5}


def test_one_too_few_is_gone():
    ref = make_ref("k")
    assert matched([ref], [before(7), before(8, reason="duplicate_key")], [8]) == [
        ref._replace(before=before(8, same=False, reason="duplicate_key")),
        InputRef("k", Location("", 0), before=before(7, same=False, gone=True), dealt="train"),
    ]


def test_a_duplicate_whose_original_is_no_longer_listed_stays_one():
    """Another source names the same file. If that one's inputs stay unlisted, the file may not be there twice."""
    ref = make_ref("k", path="raw/k")
    known = Identities(CONFIG).of(ref)
    past = {"k": [before(known, reason="listed_twice")]}
    carried = ref._replace(fault=Fault("listed_twice", "it was one before"))
    asked: list[int] = []

    def carry(shard: PlannedShard) -> list[InputRef]:
        asked.append(shard.index)
        return [carried, make_ref("of another bucket")]

    assert list(match_inputs([ref], dict(past), CONFIG, retry=False, carry=carry)) == [carried]
    assert asked == [3]
    (alone,) = match_inputs([ref], dict(past), CONFIG, retry=False)
    assert alone == ref._replace(before=past["k"][0])


def test_known_reads_only_the_shards_that_meet_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.versions.match.BUCKET_INPUTS", 5)
    dataset = Versions(tmp_path / "out")
    dataset.update({f"k{number:03}": Thing() for number in range(120)})
    known = Known.of(dataset.root)
    read: list[PlannedShard] = []

    def spy(folder: BuildFolder, shard: PlannedShard) -> Iterator[tuple[str, Before]]:
        read.append(shard)
        return read_past(folder, shard)

    monkeypatch.setattr("pipelines.versions.match.read_past", spy)
    keys = {key for number in range(known.buckets) for key in known.inputs(number)}
    assert len(keys) == 120
    assert known.buckets == 25
    assert len(known.ranges) >= 8
    assert len(read) < known.buckets * len(known.ranges) / 2
