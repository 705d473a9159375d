"""Decides, from metadata alone, which split and which shard every example goes to.

Pure functions; Beam only carries them. The split is a salted hash of the group or key against the fractions. Inside a
split, examples lie in the order of another hash of the key, and a shard is a range of that order. The ranges are cut
on a histogram of hash prefixes, so that shards are even and stay within the asked size, and a shard still needs
nothing but a lookup, however many images there are.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pipelines.config import BuildConfig
from pipelines.planning.listing import Listing, check_removals, check_replacements, needs_place, order_prefix
from pipelines.planning.ranges import choose_ranges, still_fit
from pipelines.planning.splits import check_split_names, split_order
from pipelines.values import Changes, Content, InputRef, PlannedShard
from shards.errors import UsageError

_INTEGER = re.compile(r"-?(0|[1-9]\d*)")


@dataclass(frozen=True)
class SplitPlan:
    """A split's new shards as ranges of hash prefixes: shard i starts at `starts[i]`; `sources` counts all its inputs.

    A split that gets no new shards has no starts.
    """

    name: str
    images: int
    estimated_bytes: int
    first_number: int
    starts: tuple[int, ...]
    sources: Mapping[str, int] = field(default_factory=dict)
    first_index: int = 0

    def shard_of(self, ref: InputRef) -> PlannedShard | None:
        """The new shard that holds a ref of this split; none if there are no new ones."""
        return self._shard(bisect_right(self.starts, order_prefix(ref.key)) - 1) if self.starts else None

    @property
    def shards(self) -> tuple[PlannedShard, ...]:
        """The new shards of the split."""
        return tuple(self._shard(place) for place in range(len(self.starts)))

    def _shard(self, place: int) -> PlannedShard:
        return PlannedShard(number=self.first_number + place, split=self.name, index=self.first_index + place)


@dataclass(frozen=True)
class Rebuilt:
    """A shard that takes the place of an older one, some of whose inputs have changed."""

    shard: PlannedShard
    old_index: int
    images: int


@dataclass(frozen=True)
class Plan:
    """The whole build, decided: labels in id order, every shard to write, and how many inputs cannot be used.

    Where a dataset is taken further, `rebuilt` and `dropped` shards (by split and index) end with the old version; all
    others of its shards stay.
    """

    labels: tuple[str, ...]
    label_counts: Mapping[str, int]
    splits: tuple[SplitPlan, ...]
    faulty: int = 0
    fault: str = ""  # what is wrong with one of them
    content: Content = field(default_factory=Content)
    rebuilt: tuple[Rebuilt, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()
    changes: Changes = field(default_factory=Changes)

    @property
    def listed(self) -> int:
        """Inputs listed."""
        return sum(sum(split.sources.values()) for split in self.splits)

    @property
    def images(self) -> int:
        """Inputs that shards are written from."""
        return sum(split.images for split in self.splits) + sum(rebuilt.images for rebuilt in self.rebuilt)

    @cached_property
    def shards(self) -> tuple[PlannedShard, ...]:
        """Every shard to write, by number."""
        new = [shard for split in self.splits for shard in split.shards]
        return (*new, *(rebuilt.shard for rebuilt in self.rebuilt))

    @cached_property
    def ended(self) -> frozenset[tuple[str, int]]:
        """The shards of the version before that are no part of this one, by split and index."""
        return frozenset(self.successors) | frozenset(self.dropped)

    @cached_property
    def successors(self) -> dict[tuple[str, int], PlannedShard]:
        """The shards made again, by the split and index that they had."""
        return {(each.shard.split, each.old_index): each.shard for each in self.rebuilt}

    @cached_property
    def origins(self) -> dict[int, PlannedShard]:
        """What the shards made again were before, by their number."""
        return {shard.number: PlannedShard(-1, *place) for place, shard in self.successors.items()}

    @property
    def label_ids(self) -> dict[str, int]:
        """Every label with its id."""
        return {label: number for number, label in enumerate(self.labels)}

    def split(self, name: str) -> SplitPlan:
        """The plan of one split."""
        return next(split for split in self.splits if split.name == name)

    def shard_of(self, ref: InputRef) -> PlannedShard | None:
        """The shard to write that holds a ref; none if it lies where it lay."""
        if needs_place(ref):
            return self.split(ref.dealt).shard_of(ref)
        return self.successors.get((ref.before.split, ref.before.shard)) if ref.before else None


@dataclass(frozen=True)
class Past:
    """What binds a plan to what was there before.

    Labels keep their ids, indices are never used twice, and a build that goes on keeps its `starts`.
    """

    labels: tuple[str, ...] = ()
    next_index: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: int | None = None  # how many there were, if most of them must still be there
    keep_missing: bool = False  # whether those stay that are no longer listed
    shards: Mapping[str, int] | None = None  # how many each split has, if they shall become fewer


def make_plan(
    listing: Listing, config: BuildConfig, *, label_names: tuple[str, ...] = (), past: Past | None = None
) -> Plan:
    """Turns counts into shard ranges and label ids.

    Label ids are the order of `label_names` if there are any, else of the sorted labels, behind those of the past.
    """
    past = past or Past()
    if past.inputs is not None:
        check_removals(listing, past.inputs)
        if past.keep_missing:
            check_replacements(listing, past.inputs)
    check_label_names(label_names, past.labels)
    names = split_order({name for name, _ in listing.sources}, config.splits)
    check_split_names(names, config)
    splits: list[SplitPlan] = []
    for name in names:
        first = splits[-1].first_number + len(splits[-1].starts) if splits else 0
        splits.append(_plan_split(name, first, listing, config, past))
    rebuilt, dropped = _plan_rebuilt(listing, splits, past)
    labels = label_names or (*past.labels, *sort_labels(set(listing.labels) - set(past.labels)))
    content = find_content(listing)
    check_content(content, labels, listing, config)
    return Plan(
        labels,
        {label: listing.labels[label] for label in labels},
        tuple(splits),
        faulty=listing.faulty,
        fault=listing.fault,
        content=content,
        rebuilt=rebuilt,
        dropped=dropped,
        changes=Changes(**listing.changes),
    )


def _plan_split(name: str, first_number: int, listing: Listing, config: BuildConfig, past: Past) -> SplitPlan:
    cells = sorted((prefix, count) for (split, prefix), count in listing.images.items() if split == name)
    prefixes, weights = [prefix for prefix, _ in cells], [listing.bytes[name, prefix] for prefix, _ in cells]
    images = sum(count for _, count in cells)
    starts = past.starts.get(name, ())
    # How many shards a split shall have says nothing of the few inputs that come later: their size does.
    is_later = past.shards is None and name in past.next_index
    asked = config.shards.model_copy(update={"count": None, "min_count": 1}) if is_later else config.shards
    if images and not still_fit(starts, prefixes, weights, asked):
        starts = choose_ranges(name, prefixes, weights, images=images, config=asked)
    if past.shards and len(starts) >= past.shards.get(name, 0):
        images, starts, weights = 0, (), []
    sources = {source: count for (split, source), count in sorted(listing.sources.items()) if split == name}
    return SplitPlan(name, images, sum(weights), first_number, starts, sources, past.next_index.get(name, 0))


def _plan_rebuilt(
    listing: Listing, splits: Sequence[SplitPlan], past: Past
) -> tuple[tuple[Rebuilt, ...], tuple[tuple[str, int], ...]]:
    """New numbers and indices, behind those of the new shards, for the shards that changed; and those that emptied."""
    staying = {split.name for split in splits if past.shards and not split.starts}
    touched = sorted(place for place, count in listing.touched.items() if count and place[0] not in staying)
    number = sum(len(split.starts) for split in splits)
    indices = dict(past.next_index) | {split.name: split.first_index + len(split.starts) for split in splits}
    rebuilt: list[Rebuilt] = []
    for split, old_index in touched:
        if listing.stays[split, old_index]:
            shard = PlannedShard(number + len(rebuilt), split, indices[split])
            rebuilt.append(Rebuilt(shard, old_index, listing.stays[split, old_index]))
            indices[split] += 1
    return tuple(rebuilt), tuple(place for place in touched if not listing.stays[place])


def check_label_names(names: Sequence[str], labels: Sequence[str]) -> None:
    """Refuses names that give a class of the dataset another id."""
    if not names:
        return
    for number, label in enumerate(labels):
        if number >= len(names) or names[number] != label:
            found = repr(names[number]) if number < len(names) else "nothing"
            raise UsageError(
                f"labels.names has {found} in line {number + 1}, but class {number} of the dataset is {label!r}; "
                "ids must stay: add new names at the end, or build again with --overwrite"
            )


def check_content(content: Content, labels: Sequence[str], listing: Listing, config: BuildConfig) -> None:
    """Refuses settings for which the inputs have nothing."""
    if config.boxes and not content.is_images:
        raise UsageError(f"boxes need pictures, the inputs are rows of {content.row_length} features; remove boxes")
    if config.labels.kind == "multi" and not labels and listing.row_lengths:
        raise UsageError("no input has a label; for data without labels set labels.kind to none")


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in id order: by name, or by value if all are integers, so that 2 stands before 10."""
    found = sorted(labels)
    return tuple(sorted(found, key=int) if all(map(_INTEGER.fullmatch, found)) else found)


def find_content(listing: Listing) -> Content:
    """What the records will hold; refuses a mixture."""
    lengths = sorted(listing.row_lengths)
    if len(lengths) > 1:
        kinds = [f"{listing.row_lengths[n]:,} {f'rows of {n} features' if n else 'pictures'}" for n in lengths]
        raise UsageError(f"the inputs are {' and '.join(kinds)}; a dataset holds one kind: build one of each")
    return Content(row_length=lengths[0] if lengths else 0)
