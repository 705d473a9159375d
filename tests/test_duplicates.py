"""Clusters against a naive implementation, whatever the order; who stays, and what the others are told."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import DedupeConfig
from pipelines.dedupe.bands import look_alikes
from pipelines.dedupe.duplicates import Cluster, Member, Piece, find_clusters, find_pieces, judge
from pipelines.pictures.perceptual import distance
from pipelines.values import Fault, Location


def look(*bits: int) -> bytes:
    """A look in which these bits are set."""
    return sum(1 << bit for bit in bits).to_bytes(32, "little")


def make_member(key: str, **fields) -> Member:
    """A new input; its content follows from the key unless it is given."""
    content = fields.setdefault("content", sum(key.encode()) + 1)
    fields.setdefault("digest", content.to_bytes(16, "little"))
    return Member(fields.pop("is_new", True), fields.pop("source", 0), key, Location(f"/{key}", 9), key, **fields)


def never_read(member: Member) -> bytes:
    raise AssertionError(f"{member.key} was read")


def pieces_of(members, *, limit: int = 0, read: Callable[[Member], bytes] = never_read) -> list[Piece]:
    """What the pipeline makes of members, without the pipeline."""
    found: dict[bytes, list[Member | bytes]] = {}
    for member in members:
        found.setdefault(member.mark, []).append(member)
    for one, other in look_alikes([mark for mark in found if len(mark) == 32], distance=limit):
        found[one].append(other)
        found[other].append(one)
    return [piece for mark, each in found.items() for piece in find_pieces(mark, each, read)]


def near(limit: int, policy: str = "keep_first") -> DedupeConfig:
    return DedupeConfig(find="near", distance=limit, policy=policy)


def judged(members, config: DedupeConfig) -> dict[str, Fault | None]:
    """Everybody in a cluster, with the fault if there is one."""
    verdicts: dict[str, Fault | None] = {}
    for cluster in find_clusters(pieces_of(members, limit=config.limit)):
        faults = judge(cluster, config)
        verdicts |= {member.key: faults.get(number) for number, member in enumerate(cluster.members)}
    return verdicts


LOOKS = st.sets(st.integers(0, 14), max_size=6).map(lambda bits: look(*bits))
MEMBERS = st.lists(st.tuples(LOOKS, st.integers(1, 6), st.booleans(), st.integers(0, 1)), max_size=9)


def members_of(drawn) -> list[Member]:
    """Members with looks, some of them equal in their bytes as well."""
    made = []
    for number, (seen, content, is_new, source) in enumerate(drawn):
        same_bytes = next((each for each in made if each.content == content), None)
        made.append(
            make_member(
                f"k{number}",
                content=content,
                look=same_bytes.look if same_bytes else seen,
                is_new=is_new,
                source=source,
            )
        )
    return made


def naive_clusters(members: list[Member], limit: int) -> list[set[str]]:
    """All pairs, merged until nothing changes."""
    clusters = [{member.key} for member in members]
    for one in members:
        for other in members:
            if one.content == other.content or distance(one.look, other.look) <= limit:
                touched = [each for each in clusters if each & {one.key, other.key}]
                clusters = [each for each in clusters if each not in touched] + [set().union(*touched)]
    return [each for each in clusters if len(each) > 1]


@given(drawn=MEMBERS, limit=st.integers(0, 4), seed=st.integers(0, 99))
def test_clusters_are_those_of_all_pairs_in_any_order(drawn, limit, seed):
    members = members_of(drawn)
    pieces = pieces_of(members, limit=limit)
    clusters = find_clusters(pieces)
    assert sorted(sorted(m.key for m in cluster.members) for cluster in clusters) == sorted(
        map(sorted, naive_clusters(members, limit))
    )
    shuffler = random.Random(seed)
    shuffler.shuffle(members)
    others = pieces_of(members, limit=limit)
    shuffler.shuffle(others)
    assert find_clusters(others) == clusters


@given(drawn=MEMBERS, limit=st.integers(0, 4))
def test_who_is_left_out_is_like_one_that_stays_and_those_that_stay_are_not_alike(drawn, limit):
    members = members_of(drawn)
    for cluster in find_clusters(pieces_of(members, limit=limit)):
        faults = judge(cluster, near(limit))
        staying = [number for number in range(len(cluster.members)) if number not in faults]
        assert staying[0] == 0
        assert list(cluster.members) == sorted(cluster.members)
        for number in faults:
            bits = cluster.bits_apart(number, [other for other in staying if other < number])
            assert bits.min() <= limit
        for number in staying[1:]:
            assert cluster.bits_apart(number, [other for other in staying if other != number]).min() > limit


def test_the_first_stays_by_source_and_key_unless_the_dataset_has_another():
    members = [make_member("b", content=5), make_member("a", content=5, source=1), make_member("c", content=5)]
    same = Fault("duplicate", "it has the same bytes as b, which stays")
    assert judged(members, DedupeConfig(find="exact")) == {"b": None, "c": same, "a": same}
    members[2] = members[2]._replace(is_new=False)
    same = Fault("duplicate", "it has the same bytes as c, which stays")
    assert judged(members, DedupeConfig(find="exact")) == {"c": None, "b": same, "a": same}


def test_the_closest_of_those_that_stay_is_named_with_the_distance():
    members = [
        make_member("a", look=look()),
        make_member("b", look=look(1, 2, 3, 4, 5)),  # too far from a
        make_member("c", look=look(1, 2, 3)),  # ties them
        make_member("d", look=look()),  # other bytes than a
    ]
    assert judged(members, near(3)) == {
        "a": None,
        "b": None,
        "c": Fault("near_duplicate", "it looks like b, which stays: 2 of 256 bits differ"),
        "d": Fault("near_duplicate", "it looks like a, which stays: 0 of 256 bits differ"),
    }


def test_a_distance_more_is_too_far():
    members = [make_member("a", look=look()), make_member("b", look=look(1, 2, 3))]
    assert judged(members, near(2)) == {}
    assert judged(members, near(3))["b"] == Fault(
        "near_duplicate", "it looks like a, which stays: 3 of 256 bits differ"
    )


def test_conflicting_labels_lose_everybody_if_asked_for():
    members = [
        make_member("a", content=5, answer=("cat",)),
        make_member("b", content=5, answer=("cat",)),
        make_member("c", content=5, answer=("dog", "wet")),
        make_member("d", content=6),
        make_member("e", content=6),
    ]
    cat = "has the same bytes but says cat where this says dog and wet; none of them stays"
    dog = "has the same bytes but says dog and wet where this says cat; none of them stays"
    assert judged(members, DedupeConfig(find="exact", policy="drop_conflicts")) == {
        "a": Fault("conflicting_labels", f"c {dog}"),
        "b": Fault("conflicting_labels", f"c {dog}"),
        "c": Fault("conflicting_labels", f"a {cat}"),
        "d": None,
        "e": Fault("duplicate", "it has the same bytes as d, which stays"),
    }
    assert [key for key, fault in judged(members, DedupeConfig(find="exact")).items() if not fault] == ["a", "d"]


def test_conflicting_targets_of_pictures_that_look_alike():
    members = [make_member("a", look=look(), answer=(1.5,)), make_member("b", look=look(7), answer=())]
    told = "b looks alike, 1 of 256 bits differ, but says nothing where this says 1.5; none of them stays"
    assert judged(members, near(2, "drop_conflicts"))["a"] == Fault("conflicting_labels", told)


def test_report_leaves_everybody_in():
    members = [make_member("a", content=5, answer=("cat",)), make_member("b", content=5, answer=("dog",))]
    assert judged(members, DedupeConfig(find="exact", policy="report")) == {"a": None, "b": None}
    (cluster,) = find_clusters(pieces_of(members))
    assert cluster.has_conflict


def test_an_input_that_is_listed_twice_is_one_member():
    assert pieces_of([make_member("a"), make_member("a")]) == []
    assert pieces_of([make_member("a", look=look(1)), make_member("a", look=look(1))]) == []


def test_two_inputs_of_one_key_are_two_members():
    here, there = make_member("a", content=5), make_member("a", content=5)._replace(location=Location("/there", 9))
    assert [len(piece.members) for piece in pieces_of([here, there])] == [2]


def test_64_bits_do_not_prove_that_bytes_are_equal():
    members = [make_member("a", content=5, digest=b"x" * 16), make_member("b", content=5, digest=b"y" * 16)]
    assert pieces_of(members) == []


@pytest.mark.parametrize(
    ("digest", "expected"),
    [(b"x" * 16, [["a", "b"]]), (b"y" * 16, []), (b"", [])],
    ids=["equal", "other", "unreadable"],
)
def test_what_an_earlier_build_knows_by_64_bits_is_read_to_make_sure(digest, expected):
    known = make_member("a", content=5, digest=b"", is_new=False)
    read = []

    def read_digest(member: Member) -> bytes:
        read.append(member.key)
        return digest

    pieces = pieces_of([known, make_member("b", content=5, digest=b"x" * 16)], read=read_digest)
    assert [[member.key for member in piece.members] for piece in pieces] == expected
    assert read == ["a"]


def test_what_an_earlier_build_found_is_not_read_again():
    # One is a record, the other was left out as its duplicate.
    members = [make_member("a", content=5, digest=b"", is_new=False), make_member("b", content=5, digest=b"")]
    assert [[member.key for member in piece.members] for piece in pieces_of(members)] == [["a", "b"]]


def test_two_records_of_an_earlier_build_are_read_before_one_of_them_goes():
    members = [make_member(key, content=5, digest=b"", is_new=False) for key in "ab"]
    assert pieces_of(members, read=lambda member: member.key.encode()) == []


def test_a_cluster_of_thousands_is_judged_quickly_and_by_its_first():
    members = tuple(make_member(f"{n:05d}", content=n + 1, look=look(n % 3, 3 + n % 5)) for n in range(3000))
    faults = judge(Cluster(members), near(12))
    assert sorted(faults) == list(range(1, 3000))
