"""Decides on which side of the splits duplicates fall, so that no cluster, and no group, is ever cut by a split.

Clusters and the groups of their members are tied together: if one of two duplicates belongs to group g and the other to
group h, all of g and h go to the same side. What is bound to a side (the dataset has it there, or the source says so)
stays there and takes the others along. Where bounds contradict each other, an input that is free goes with those it is
tied to itself; one that is tied to both sides is left out, for on either side it would be a leak.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.config import DedupeConfig
from pipelines.dedupe.duplicates import Cluster, Identity, Member, Piece, find_clusters, judge, repeats
from pipelines.dedupe.unions import Unions
from pipelines.values import Fault


class Place(NamedTuple):
    """Where inputs that belong together go: a side that is given, or the unit whose hash decides."""

    unit: str
    side: str = ""


class Verdict(NamedTuple):
    """What becomes of one input."""

    place: Place
    fault: Fault | None = None


@dataclass(frozen=True)
class Found:
    """How many clusters there are, of how many inputs; how many of them were left out; how many clusters disagree."""

    clusters: int = 0
    members: int = 0
    dropped: int = 0
    conflicts: int = 0

    def __str__(self) -> str:
        """Reads like `duplicates: 3 clusters of 6 inputs, 3 left out; 1 cluster has conflicting labels`."""
        conflicts = f"{self.conflicts:,} cluster{'s have' if self.conflicts != 1 else ' has'} conflicting labels"
        return (
            f"duplicates: {self.clusters:,} clusters of {self.members:,} inputs, {self.dropped:,} left out; {conflicts}"
        )

    def __add__(self, other: "Found") -> "Found":
        """Both together."""
        return Found(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on all inputs that have duplicates, and the places of their groups: as large as these are many."""

    members: Mapping[Identity, Verdict] = field(default_factory=dict)
    groups: Mapping[str, Place] = field(default_factory=dict)


def decide(pieces: Iterable[Piece], group_sides: Iterable[tuple[str, str]], config: DedupeConfig) -> Verdicts:
    """Everything that follows from the pieces of clusters; `group_sides` are groups with a side they are bound to."""
    clusters = find_clusters(pieces)
    bound: defaultdict[str, set[str]] = defaultdict(set)
    for group, side in group_sides:
        bound[group].add(side)
    members: dict[Identity, Verdict] = {}
    groups: dict[str, Place] = {}
    for together in _tie_groups(clusters):
        dealer = _Dealer(together, bound, config)
        members |= dealer.verdicts()
        groups |= dealer.groups
    return Verdicts(members, groups)


def list_clusters(pieces: Iterable[Piece], verdicts: Verdicts) -> Iterator[str]:
    """A line of JSON for each cluster: its members in their order, each with whom it is like among those before it."""
    for cluster in find_clusters(pieces):
        members = [_tell(cluster, number, verdicts) for number in range(len(cluster.members))]
        yield json.dumps({"conflict": cluster.has_conflict, "members": members}) + "\n"


def _tell(cluster: Cluster, number: int, verdicts: Verdicts) -> dict[str, Any]:
    member = cluster.members[number]
    told = {"key": member.key, "says": member.answer, "stays": verdicts.members[member.identity].fault is None}
    if not number:
        return told
    other, bits = cluster.closest(number, range(number))
    return told | {"like": cluster.members[other].key, "bits": max(bits, 0), "same_bytes": bits < 0}


def read_found(path: Path) -> Found:
    """What a listing of clusters adds up to."""
    found = Found()
    with path.open(encoding="utf-8") as lines:
        for cluster in map(json.loads, lines):
            members = cluster["members"]
            dropped = sum(not member["stays"] for member in members)
            found += Found(1, len(members), dropped, int(cluster["conflict"]))
    return found


def _tie_groups(clusters: Iterable[Cluster]) -> list[list[Cluster]]:
    """Clusters that have a group in common, together."""
    units: Unions[str] = Unions()
    by_unit: defaultdict[str, list[Cluster]] = defaultdict(list)
    for cluster in clusters:
        first = cluster.members[0].unit
        by_unit[first].append(cluster)
        for member in cluster.members:
            units.tie(first, member.unit)
    tied = ([cluster for unit in sorted(together) for cluster in by_unit[unit]] for together in units.sets())
    return sorted((each for each in tied), key=lambda together: min(cluster.members[0] for cluster in together))


class _Dealer:
    """Deals clusters that belong together to their sides."""

    def __init__(self, clusters: Sequence[Cluster], bound: Mapping[str, set[str]], config: DedupeConfig) -> None:
        self._limit = config.limit
        everybody = ((member, cluster, number) for cluster in clusters for number, member in enumerate(cluster.members))
        self._everybody = sorted(everybody, key=lambda entry: entry[0])
        self._faults = {
            cluster.members[number].identity: fault
            for cluster in clusters
            for number, fault in judge(cluster, config).items()
        }
        groups = sorted({member.group for member, _, _ in self._everybody if member.group})
        self._group_sides = {group: set(bound.get(group, ())) for group in groups}
        self._sides: dict[Identity, str] = {}
        self.groups: dict[str, Place] = {}

    def verdicts(self) -> dict[Identity, Verdict]:
        """The verdicts on all members; then `groups` has the places of their groups."""
        staying = [member for member, _, _ in self._everybody if member.identity not in self._faults]
        bound = [member.side for member in staying if member.side]
        bound += [side for group in self._group_sides.values() for side in sorted(group)]
        main = Place((staying or [self._everybody[0][0]])[0].unit, bound[0] if bound else "")
        if len(set(bound)) < 2:
            places = {main.side: main}
        else:
            self._take_sides(main.side)
            places = dict(self._places(staying))
        for member, _, _ in self._everybody:
            if member.group:
                side = min(self._group_sides[member.group], default=main.side)
                self.groups[member.group] = places.setdefault(side, Place(member.unit, side))
        return {member.identity: self._verdict(member, places, main) for member, _, _ in self._everybody}

    def _verdict(self, member: Member, places: Mapping[str, Place], main: Place) -> Verdict:
        side = self._sides.get(member.identity, main.side)
        return Verdict(places.get(side, main), self._faults.get(member.identity))

    def _take_sides(self, default: str) -> None:
        """Gives every member that stays a side, those that are bound first; some do not stay after all."""
        staying = [entry for entry in self._everybody if entry[0].identity not in self._faults]
        for member, _, _ in staying:
            if member.side:
                self._give(member, member.side)
        for member, cluster, number in staying:
            if not member.side:
                self._choose(member, cluster, number, default)

    def _choose(self, member: Member, cluster: Cluster, number: int, default: str) -> None:
        dealt = [other for other, each in enumerate(cluster.members) if each.identity in self._sides]
        near = [n for n, bits in zip(dealt, cluster.bits_apart(number, dealt), strict=True) if bits <= self._limit]
        sides = {self._sides[cluster.members[other].identity] for other in near}
        both = sides | self._group_sides.get(member.group, set())
        if near and len(both) > 1:
            closest, bits = cluster.closest(number, near)
            self._faults[member.identity] = repeats(cluster.members[closest], bits)
        else:
            self._give(member, min(both, default=default))

    def _give(self, member: Member, side: str) -> None:
        self._sides[member.identity] = side
        if member.group:
            self._group_sides[member.group].add(side)

    def _places(self, staying: Iterable[Member]) -> Iterator[tuple[str, Place]]:
        """Each side with a unit of its own: the first member's on that side."""
        for member in reversed(list(staying)):
            if side := self._sides.get(member.identity):
                yield side, Place(member.unit, side)
