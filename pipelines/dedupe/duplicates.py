"""Decides what becomes of duplicates: pure functions; `marking` carries them.

Inputs with the same bytes, or with looks that differ in few bits, form a cluster with whatever is tied to them in the
same way. A cluster's members have an order: what the dataset has comes before what is new, then they go by source and
key. The first stays, and so does each that is not alike to one that stays: nothing is left out without one to stand for
it. This depends on the order and on nothing else, so that it is the same however the inputs were listed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.config import DedupeConfig
from pipelines.dedupe.unions import Unions
from pipelines.pictures.perceptual import LOOK_BYTES, Words, distances, to_words
from pipelines.reasons import CONFLICTING_LABELS, DUPLICATE, NEAR_DUPLICATE
from pipelines.values import Fault, Location

Identity = tuple[str, str, int]  # key, path, offset
DIGEST_BYTES = 16
_SAME_BYTES, _FAR = -1, 1 << 16


class Member(NamedTuple):
    """An input that may have duplicates; sorted, members stand in the order in which they stay."""

    is_new: bool  # False: the dataset has it as a record, and it has not changed
    source: int
    key: str
    location: Location
    unit: str  # its group or key, as `splits` names it
    group: str = ""
    side: str = ""  # the split that it is bound to
    answer: tuple[str | float, ...] = ()  # its labels in order, or its target
    content: int = 0
    digest: bytes = b""  # of its bytes; empty: only their shorter `content` is known, from an earlier build
    look: bytes = b""

    @property
    def identity(self) -> Identity:
        """Tells inputs apart, even those of one key."""
        return self.key, self.location.path, self.location.offset

    @property
    def mark(self) -> bytes:
        """The same for equal inputs: the look, or without one what is known of the bytes."""
        return self.look or self.content.to_bytes(8, "little")


class Piece(NamedTuple):
    """Members with one mark, and the other marks that are close to it."""

    mark: bytes
    members: tuple[Member, ...]
    partners: tuple[bytes, ...] = ()


def find_pieces(
    mark: bytes, found: Iterable[Member | bytes], read_digest: Callable[[Member], bytes]
) -> Iterator[Piece]:
    """Everything of one mark, members and close marks, as pieces of clusters; nothing if it is alone.

    An input that is listed twice is one member. Members that only seem to have the same bytes are read to make sure.
    """
    members: dict[Identity, Member] = {}
    partners: set[bytes] = set()
    for each in found:
        if isinstance(each, Member):
            members[each.identity] = min(each, members.get(each.identity, each))
        else:
            partners.add(each)
    alike = sorted(members.values())
    if len(mark) == LOOK_BYTES:
        pieces = [Piece(mark, tuple(alike), tuple(sorted(partners)))]
    else:
        pieces = [Piece(digest, same) for digest, same in _same_bytes(mark, alike, read_digest)]
    yield from (piece for piece in pieces if piece.partners or len(piece.members) > 1)


def _same_bytes(
    mark: bytes, members: Sequence[Member], read_digest: Callable[[Member], bytes]
) -> Iterator[tuple[bytes, tuple[Member, ...]]]:
    """Members by a digest that is long enough to prove that their bytes are equal."""
    unread = [member for member in members if not member.digest]
    if len(members) < 2 or (len(unread) == len(members) and sum(not member.is_new for member in members) < 2):
        yield mark, tuple(members)  # nobody to be equal to; or this was proven by the build that left out all but one
        return
    found: defaultdict[bytes, list[Member]] = defaultdict(list)
    for member in members:
        found[member.digest or read_digest(member)].append(member)
    found.pop(b"", None)  # what cannot be read is nobody's duplicate
    yield from ((digest, tuple(same)) for digest, same in sorted(found.items()))


@dataclass(frozen=True)
class Cluster:
    """Members that are tied together by equal bytes or close looks, in their order; at least two."""

    members: tuple[Member, ...]

    @cached_property
    def _words(self) -> Words:
        return to_words([member.look for member in self.members])

    @cached_property
    def _contents(self) -> npt.NDArray[np.uint64]:
        return np.array([member.content for member in self.members], dtype=np.uint64)

    @property
    def has_conflict(self) -> bool:
        """Whether its members have different labels or targets."""
        return len({member.answer for member in self.members}) > 1

    def bits_apart(self, number: int, others: Sequence[int]) -> npt.NDArray[np.int64]:
        """In how many bits a member looks other than some others; -1 if even the bytes are the same."""
        bits = np.full(len(others), _FAR)
        if self.members[number].look:
            bits = distances(self._words[:, number], self._words[:, others])
        content = self._contents[number]
        bits[(self._contents[others] == content) & (content != 0)] = _SAME_BYTES
        return bits

    def closest(self, number: int, others: Sequence[int]) -> tuple[int, int]:
        """Which of others a member is closest to, the first of several; and how many bits they are apart."""
        if not others:
            return number, _FAR
        bits = self.bits_apart(number, others)
        place = int(bits.argmin())
        return others[place], int(bits[place])


def find_clusters(pieces: Iterable[Piece]) -> list[Cluster]:
    """The clusters that pieces make up, in the order of their first members, whatever the order of the pieces."""
    marks: Unions[bytes] = Unions()
    members: defaultdict[bytes, list[Member]] = defaultdict(list)
    for piece in pieces:
        members[piece.mark] += piece.members
        for partner in (piece.mark, *piece.partners):
            marks.tie(piece.mark, partner)
    found = (sorted(member for mark in tied for member in members[mark]) for tied in marks.sets())
    return [Cluster(tuple(cluster)) for cluster in sorted(cluster for cluster in found if len(cluster) > 1)]


def judge(cluster: Cluster, config: DedupeConfig) -> dict[int, Fault]:
    """The members that are left out, by their numbers, and why."""
    if config.policy == "report":
        return {}
    if config.policy == "drop_conflicts" and cluster.has_conflict:
        return {number: _conflict(cluster, number) for number in range(len(cluster.members))}
    staying: list[int] = []
    faults: dict[int, Fault] = {}
    for number in range(len(cluster.members)):
        other, bits = cluster.closest(number, staying)
        if bits <= config.limit:
            faults[number] = repeats(cluster.members[other], bits)
        else:
            staying.append(number)
    return faults


def repeats(keeper: Member, bits: int) -> Fault:
    """The fault of an input that is left out for the sake of another."""
    if bits == _SAME_BYTES:
        return Fault(DUPLICATE, f"it has the same bytes as {keeper.key}, which stays")
    return Fault(NEAR_DUPLICATE, f"it looks like {keeper.key}, which stays: {bits} of 256 bits differ")


def _conflict(cluster: Cluster, number: int) -> Fault:
    """The fault of an input whose duplicates say something else; it names the closest of those."""
    ours = cluster.members[number]
    against = [other for other, each in enumerate(cluster.members) if each.answer != ours.answer]
    other, bits = cluster.closest(number, against)
    theirs = cluster.members[other]
    alike = "has the same bytes" if bits == _SAME_BYTES else f"looks alike, {bits} of 256 bits differ,"
    message = f"{theirs.key} {alike} but says {_say(theirs)} where this says {_say(ours)}; none of them stays"
    return Fault(CONFLICTING_LABELS, message)


def _say(member: Member) -> str:
    return " and ".join(map(str, member.answer)) or "nothing"
