"""No cluster and no group is ever cut by a split, and nothing that is bound to a side moves."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st
from test_duplicates import look, make_member, near, pieces_of

from pipelines.config import DedupeConfig
from pipelines.dedupe.duplicates import Member
from pipelines.dedupe.sides import Found, Place, Verdicts, decide, list_clusters, read_found
from pipelines.pictures.perceptual import distance
from pipelines.values import Fault

REPORT = DedupeConfig(find="exact", policy="report")


def grouped(key: str, group: str, **fields) -> Member:
    """A member that belongs to a group."""
    return make_member(key, group=group, **fields)._replace(unit=f"group\0{group}")


def decided(members, config: DedupeConfig, group_sides=()) -> Verdicts:
    return decide(pieces_of(members, limit=config.limit), group_sides, config)


def by_key(verdicts: Verdicts) -> dict[str, tuple[Place, Fault | None]]:
    return {key: (verdict.place, verdict.fault) for (key, _, _), verdict in verdicts.members.items()}


def test_nothing_found_is_nothing_decided():
    assert decided([make_member("a"), make_member("b")], REPORT) == Verdicts()


def test_a_cluster_goes_by_the_unit_of_its_first():
    members = [make_member(key, content=5) for key in "cab"]
    assert by_key(decided(members, REPORT)) == {key: (Place("a"), None) for key in "abc"}


def test_duplicates_tie_their_groups_together():
    members = [
        grouped("a", "g", content=5),
        grouped("b", "h", content=5),
        grouped("c", "h", content=6),
        make_member("d", content=6),
        make_member("x", content=7),
        make_member("y", content=7),
    ]
    verdicts = decided(members, REPORT)
    assert by_key(verdicts) == {key: (Place("group\0g"), None) for key in "abcd"} | {
        key: (Place("x"), None) for key in "xy"
    }
    assert verdicts.groups == {"g": Place("group\0g"), "h": Place("group\0g")}


def test_the_side_of_what_the_dataset_has_binds_the_others():
    members = [make_member("b", content=5, side="test", is_new=False), make_member("a", content=5)]
    assert by_key(decided(members, REPORT)) == {"b": (Place("b", "test"), None), "a": (Place("b", "test"), None)}


def test_a_group_that_the_dataset_has_on_a_side_binds_a_cluster_without_old_members():
    members = [grouped("a", "g", content=5), make_member("b", content=5)]
    verdicts = decided(members, REPORT, [("g", "test")])
    assert by_key(verdicts) == {key: (Place("group\0g", "test"), None) for key in "ab"}
    assert verdicts.groups == {"g": Place("group\0g", "test")}


def test_a_new_input_between_old_ones_of_two_sides_is_left_out_whatever_the_policy():
    members = [
        make_member("old1", look=look(), side="train", is_new=False),
        make_member("old2", look=look(1, 2, 3, 4, 5), side="test", is_new=False),
        make_member("new", look=look(1, 2, 3)),
        make_member("near1", look=look(200)),  # alike old1 only
    ]
    told = Fault("near_duplicate", "it looks like old2, which stays: 2 of 256 bits differ")
    expected = {
        "old1": (Place("old1", "train"), None),
        "old2": (Place("old2", "test"), None),
        "near1": (Place("old1", "train"), None),
        "new": (Place("old1", "train"), told),
    }
    assert by_key(decided(members, near(3, "report"))) == expected
    left_out = {key for key, (_, fault) in by_key(decided(members, near(3))).items() if fault}
    assert left_out == {"new", "near1"}


def test_a_new_input_whose_group_is_on_the_other_side_is_left_out():
    members = [grouped("new", "g", content=5), make_member("old", content=5, side="test", is_new=False)]
    verdicts = by_key(decided(members, REPORT, [("g", "train")]))
    assert verdicts["new"][1] == Fault("duplicate", "it has the same bytes as old, which stays")
    assert verdicts["old"] == (Place("old", "test"), None)


def test_clusters_are_listed_and_counted(tmp_path):
    members = [
        make_member("a", content=5, answer=("cat",)),
        make_member("b", content=5, answer=("dog",)),
        make_member("c", content=6),
        make_member("d", content=6),
        make_member("e", content=6),
    ]
    pieces, path = pieces_of(members), tmp_path / "duplicates.jsonl"
    path.write_text("".join(list_clusters(pieces, decide(pieces, (), DedupeConfig(find="exact")))))
    assert read_found(path) == Found(clusters=2, members=5, dropped=3, conflicts=1)
    path.write_text("".join(list_clusters(pieces, decide(pieces, (), REPORT))))
    assert read_found(path) == Found(clusters=2, members=5, dropped=0, conflicts=1)
    path.write_text("")
    assert read_found(path) == Found()
    assert str(Found(2, 5, 3, 1)) == "duplicates: 2 clusters of 5 inputs, 3 left out; 1 cluster has conflicting labels"
    assert str(Found(2, 5)) == "duplicates: 2 clusters of 5 inputs, 0 left out; 0 clusters have conflicting labels"


def test_the_listing_names_the_closest_of_those_before():
    members = [
        make_member("a", look=look(), answer=("cat",)),
        make_member("b", look=look(1, 2, 3), answer=("dog",)),
        make_member("c", look=look(1, 2)),
        make_member("d", content=7, look=look()),
        make_member("e", content=7, look=look()),
    ]
    pieces, config = pieces_of(members, limit=3), near(3)
    (line,) = list_clusters(pieces, decide(pieces, (), config))
    assert json.loads(line) == {
        "conflict": True,
        "members": [
            {"key": "a", "says": ["cat"], "stays": True},
            {"key": "b", "says": ["dog"], "stays": False, "like": "a", "bits": 3, "same_bytes": False},
            {"key": "c", "says": [], "stays": False, "like": "b", "bits": 1, "same_bytes": False},
            {"key": "d", "says": [], "stays": False, "like": "a", "bits": 0, "same_bytes": False},
            {"key": "e", "says": [], "stays": False, "like": "d", "bits": 0, "same_bytes": True},
        ],
    }


GROUPS, SIDES = st.sampled_from(["", "", "g", "h"]), st.sampled_from(["", "", "train", "test"])
DRAWN = st.tuples(st.sets(st.integers(0, 9), max_size=5), GROUPS, SIDES)


@given(
    drawn=st.lists(DRAWN, max_size=9),
    policy=st.sampled_from(["keep_first", "drop_conflicts", "report"]),
    limit=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_no_pair_that_stays_is_on_two_sides_unless_both_were_bound(drawn, policy, limit, seed):
    members, group_side = [], {}
    for number, (bits, group, side) in enumerate(drawn):
        side = group_side.setdefault(group, side) if group and side else side  # an old group is on one side
        fields = {"content": 2**number, "look": look(*bits), "side": side, "is_new": not side}
        members.append(grouped(f"k{number}", group, **fields) if group else make_member(f"k{number}", **fields))
    config = near(limit, policy)
    verdicts = decided(members, config, group_side.items())
    shuffled = random.Random(seed).sample(members, len(members))
    assert decided(shuffled, config, group_side.items()) == verdicts
    staying = {}
    for member in members:
        verdict = verdicts.members.get(member.identity)
        place = verdict.place if verdict else verdicts.groups.get(member.group) or Place(member.unit)
        if not (verdict and verdict.fault):
            side = member.side or place.side or group_side.get(member.group, "")
            staying[member] = side or f"hash of {place.unit}"
    for one, its in staying.items():
        for other, others in staying.items():
            tied = distance(one.look, other.look) <= limit or (one.group and one.group == other.group)
            if tied and not (one.side and other.side):
                assert its == others, (one, other)
    assert all(member in staying for member in members if member.side and policy == "report")
