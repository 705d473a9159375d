"""Decides, from metadata alone, which split and which shard every example goes to.

Pure functions; Beam only carries them. The split is a salted hash of the group or key against the fractions. Inside a
split, examples lie in the order of another hash of the key, and a shard is a range of that order. The ranges are cut
on a histogram of hash prefixes, so that shards are even and stay within the asked size, and a shard still needs
nothing but a lookup, however many images there are.
"""

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.config import BuildConfig, ImageConfig, ShardsConfig, SplitsConfig
from pipelines.forms import pixel_count, row_length
from pipelines.reasons import LISTED_TWICE
from pipelines.values import Content, InputRef, Location, PlannedShard
from shards.errors import UsageError
from shards.records import FRAMING_BYTES

# 2^20 prefixes: shards of a billion images are still cut to within a thousandth, and the histogram stays below 100 MB.
PREFIX_BITS = 20
# What a record holds besides the picture: feature names, key, label name, numbers.
_EXAMPLE_OVERHEAD = 160 + FRAMING_BYTES
MEGABYTE = 1_000_000
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")


def stable_hash(text: str, *, salt: str) -> int:
    """A 64-bit hash that is the same on every machine and in every release."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, key=salt.encode()[:64]).digest()
    return int.from_bytes(digest, "big")


def order_hash(key: str) -> int:
    """Where a key stands in its split; independent of the hash that chose the split."""
    return stable_hash(key, salt="order")


def choose_split(ref: InputRef, splits: SplitsConfig) -> str:
    """The split the source gives, or the one that the salted hash of group or key falls in."""
    if ref.split and splits.use_given:
        return ref.split
    # An explicit group is hashed apart from keys, so that a group called like a key is not tied to it.
    subject = f"group\0{ref.group}" if ref.group else ref.key
    position = stable_hash(subject, salt=f"split\0{splits.salt}") / 2**64
    bound = 0.0
    for name, fraction in splits.fractions.items():
        bound += fraction
        if position < bound:
            return name
    return next(name for name, fraction in reversed(splits.fractions.items()) if fraction > 0)


def estimate_record_bytes(ref: InputRef, image: ImageConfig) -> int:
    """The size of a ref's record, guessed without opening the file."""
    length = row_length(ref.location.form)
    payload = 4 * length if length else _estimate_picture_bytes(ref.location, image)
    return payload + _EXAMPLE_OVERHEAD + 2 * len(ref.key) + 16 * len(ref.boxes)


def _estimate_picture_bytes(location: Location, image: ImageConfig) -> int:
    file_bytes = location.size
    if image.resize.mode == "none" and not location.form:
        return file_bytes
    if image.resize.mode == "none":
        pixels: float = pixel_count(location.form)
    else:
        height, width = image.resize.box
        pixels = height * width * (4 / 3 if image.resize.mode.startswith("keep_ratio") else 1)
    # Photographs of a few hundred pixels: 0.15 to 0.5 bytes per pixel as JPEG of quality 75 to 95, about 2 as PNG.
    quality = image.encode.quality
    density = 2.0 if image.encode.format == "png" else 0.15 if quality <= 75 else 0.15 + (quality - 75) * 0.0175
    resized = round(pixels * density)
    return min(resized, file_bytes) if image.resize.only_if_larger else resized


@dataclass
class Listing:
    """What the refs add up to: per split a histogram of order-hash prefixes, and the label counts."""

    images: Counter[tuple[str, int]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, int]] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    row_lengths: Counter[int] = field(default_factory=Counter)  # 0: pictures
    sources: Counter[tuple[str, int]] = field(default_factory=Counter)  # by split and number of the source
    faulty: int = 0
    fault: str = ""  # one of them, in words

    def add(self, ref: InputRef, config: BuildConfig) -> "Listing":
        """Counts one ref."""
        split = choose_split(ref, config.splits)
        cell = split, order_hash(ref.key) >> (64 - PREFIX_BITS)
        self.images[cell] += 1
        self.sources[split, ref.source] += 1
        self.bytes[cell] += estimate_record_bytes(ref, config.image)
        if ref.fault and ref.fault.reason == LISTED_TWICE:
            pass  # neither an input of its own nor a problem
        elif ref.fault:
            self.faulty += 1
            self.fault = _first(self.fault, f"{ref.key}: {ref.fault.message}")
        else:
            self.labels.update(ref.labels)
            self.row_lengths[row_length(ref.location.form)] += 1
        return self

    def merge(self, other: "Listing") -> "Listing":
        """Adds another part of the listing."""
        self.images.update(other.images)
        self.bytes.update(other.bytes)
        self.labels.update(other.labels)
        self.row_lengths.update(other.row_lengths)
        self.sources.update(other.sources)
        self.faulty += other.faulty
        self.fault = _first(self.fault, other.fault)
        return self


def _first(one: str, other: str) -> str:
    return min(one, other) if one and other else one or other


@dataclass(frozen=True)
class SplitPlan:
    """A split's shards as ranges of hash prefixes: shard i starts at `starts[i]`; `sources` counts its inputs."""

    name: str
    images: int
    estimated_bytes: int
    first_number: int
    starts: tuple[int, ...]
    sources: Mapping[str, int] = field(default_factory=dict)

    def shard_of(self, ref: InputRef) -> PlannedShard:
        """The shard that holds a ref of this split."""
        index = bisect_right(self.starts, order_hash(ref.key) >> (64 - PREFIX_BITS)) - 1
        return PlannedShard(number=self.first_number + index, split=self.name, index=index)


@dataclass(frozen=True)
class Plan:
    """The whole build, decided: labels in id order, every split's shards, and how many inputs cannot be used."""

    labels: tuple[str, ...]
    label_counts: Mapping[str, int]
    splits: tuple[SplitPlan, ...]
    faulty: int = 0
    fault: str = ""  # what is wrong with one of them
    content: Content = field(default_factory=Content)

    @property
    def images(self) -> int:
        """Inputs listed."""
        return sum(split.images for split in self.splits)

    @property
    def shards(self) -> tuple[PlannedShard, ...]:
        """Every shard, by number."""
        return tuple(
            PlannedShard(number=split.first_number + index, split=split.name, index=index)
            for split in self.splits
            for index in range(len(split.starts))
        )

    @property
    def label_ids(self) -> dict[str, int]:
        """Every label with its id."""
        return {label: number for number, label in enumerate(self.labels)}

    def split(self, name: str) -> SplitPlan:
        """The plan of one split."""
        return next(split for split in self.splits if split.name == name)


def make_plan(listing: Listing, config: BuildConfig, *, label_names: tuple[str, ...] = ()) -> Plan:
    """Turns counts into shard ranges and label ids.

    Label ids are the order of `label_names` if there are any, else of the sorted labels: they depend on nothing else.
    """
    names = split_order({name for name, _ in listing.images}, config.splits)
    check_split_names(names, config)
    splits: list[SplitPlan] = []
    for name in names:
        cells = sorted((prefix, count) for (split, prefix), count in listing.images.items() if split == name)
        prefixes, weights = [prefix for prefix, _ in cells], [listing.bytes[name, prefix] for prefix, _ in cells]
        images = sum(count for _, count in cells)
        starts = choose_ranges(name, prefixes, weights, images=images, config=config.shards)
        first = splits[-1].first_number + len(splits[-1].starts) if splits else 0
        sources = {
            config.source_name(number): listing.sources[name, number]
            for number in range(len(config.all_sources))
            if listing.sources[name, number]
        }
        splits.append(SplitPlan(name, images, sum(weights), first, starts, sources))
    labels = label_names or sort_labels(listing.labels)
    counts = {label: listing.labels[label] for label in labels}
    content = find_content(listing)
    check_content(content, labels, listing, config)
    return Plan(labels, counts, tuple(splits), faulty=listing.faulty, fault=listing.fault, content=content)


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


def split_order(names: Iterable[str], splits: SplitsConfig) -> list[str]:
    """Splits in the order of the config's fractions, then the source's own by name."""
    present = set(names)
    configured = [name for name in splits.fractions if name in present]
    return configured + sorted(present - set(configured))


def check_split_names(names: Iterable[str], config: BuildConfig) -> None:
    """Refuses settings for splits that the dataset does not have."""
    present = list(names)
    counted = config.shards.count if isinstance(config.shards.count, dict) else {}
    for key, asked in (("transform.analyze", config.transform.analyze), ("shards.count", counted)):
        if unknown := [name for name in asked if name not in present]:
            raise UsageError(f"{key} names split {unknown[0]!r}; this dataset has {', '.join(present) or 'none'}")


def choose_ranges(
    split: str, prefixes: list[int], weights: list[int], *, images: int, config: ShardsConfig
) -> tuple[int, ...]:
    """Where each shard of a split starts: exactly `count` of them, or as few as keep all within `target_mb`."""
    fixed = config.count.get(split) if isinstance(config.count, dict) else config.count
    if fixed is not None:
        if fixed > images:
            raise UsageError(f"shards.count asks for {fixed} shards, but {split} has {images} images; ask for fewer")
        return cut_evenly(prefixes, weights, count=fixed)
    # One image larger than the target needs a shard of its own, and must not shrink all the others.
    limit = max(round(config.target_mb * MEGABYTE), *weights, 1)
    count = max(-(-sum(weights) // limit), config.min_count)
    starts = cut_evenly(prefixes, weights, count=count)
    while max(range_weights(prefixes, weights, starts)) > limit and len(starts) < len(prefixes):
        count += max(1, count // 100)
        starts = cut_evenly(prefixes, weights, count=count)
    return starts


def cut_evenly(prefixes: list[int], weights: list[int], *, count: int) -> tuple[int, ...]:
    """Cuts sorted prefixes into `count` ranges of nearly equal weight, none empty; returns where each range starts."""
    count = min(count, len(prefixes))
    total, done, starts = sum(weights), 0, [0]
    for position, weight in enumerate(weights):
        left = len(prefixes) - position
        # A new range starts once its even share of the weight is reached, or when each prefix left must start one.
        due = done * count >= total * len(starts) or left <= count - len(starts)
        if position and len(starts) < count and due:
            starts.append(prefixes[position])
        done += weight
    return tuple(starts)


def range_weights(prefixes: list[int], weights: list[int], starts: tuple[int, ...]) -> list[int]:
    """What each range weighs."""
    totals = [0] * len(starts)
    for prefix, weight in zip(prefixes, weights, strict=True):
        totals[bisect_right(starts, prefix) - 1] += weight
    return totals
