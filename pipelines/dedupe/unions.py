"""Disjoint sets: what was tied together, directly or through others, is one set."""

from collections import defaultdict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Unions(Generic[T]):
    """Holds only what was tied; anything else is a set of its own."""

    def __init__(self) -> None:
        """Nothing is tied."""
        self._parents: dict[T, T] = {}

    def find(self, item: T) -> T:
        """One and the same item for all of a set."""
        root = item
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while (parent := self._parents.get(item, item)) != root:
            self._parents[item] = root  # the way is shorter next time
            item = parent
        return root

    def tie(self, one: T, other: T) -> bool:
        """Makes one set of two; whether they were two."""
        first, second = self.find(one), self.find(other)
        self._parents.setdefault(first, first)
        self._parents[second] = first
        return first != second

    def sets(self) -> list[list[T]]:
        """Every set that was tied."""
        found: defaultdict[T, list[T]] = defaultdict(list)
        for item in list(self._parents):
            found[self.find(item)].append(item)
        return list(found.values())
