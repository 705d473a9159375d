"""What the inputs add up to, and how they differ from those of the version before."""

from collections import Counter
from dataclasses import dataclass, field

from pipelines.config import BuildConfig, ImageConfig
from pipelines.pictures.forms import pixel_count, row_length
from pipelines.planning.splits import order_hash
from pipelines.reasons import DUPLICATES
from pipelines.values import Before, InputRef, Location
from shards.errors import ShardsmithError
from shards.records import FRAMING_BYTES

# 2^20 prefixes: shards of a billion images are still cut to within a thousandth, and the histogram stays below 100 MB.
PREFIX_BITS = 20
# What a record holds besides the picture: feature names, key, label name, numbers.
_EXAMPLE_OVERHEAD = 160 + FRAMING_BYTES


def order_prefix(key: str) -> int:
    """The first bits of where a key stands in its split."""
    return order_hash(key) >> (64 - PREFIX_BITS)


def estimate_record_bytes(ref: InputRef, image: ImageConfig) -> int:
    """The size of a ref's record, guessed without opening the file."""
    if ref.is_carried:
        return ref.location.size
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
    """What the refs add up to: per split a histogram of order-hash prefixes, label counts, and what has changed.

    `images` and `bytes` are of the inputs that need a place in a new shard; `stays` counts those that have one, by
    split and index of their shard, and `touched` what changed there.
    """

    images: Counter[tuple[str, int]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, int]] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    row_lengths: Counter[int] = field(default_factory=Counter)  # 0: pictures
    sources: Counter[tuple[str, str]] = field(default_factory=Counter)  # by split and name of the source
    stays: Counter[tuple[str, int]] = field(default_factory=Counter)
    touched: Counter[tuple[str, int]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)  # by the fields of `Changes`
    gone: tuple[str, ...] = ()  # a few keys of those that were removed
    replaced: tuple[str, ...] = ()  # and of those that changed
    faulty: int = 0
    fault: str = ""  # one of them, in words

    def add(self, ref: InputRef, config: BuildConfig) -> "Listing":
        """Counts one ref."""
        if ref.before:
            self._compare(ref, ref.before)
            if ref.before.gone:
                return self
        else:
            self.changes["added"] += 1
        self.sources[ref.dealt, source_of(ref, config)] += 1
        if needs_place(ref):
            cell = ref.dealt, order_prefix(ref.key)
            self.images[cell] += 1
            self.bytes[cell] += estimate_record_bytes(ref, config.image)
        if ref.fault and ref.fault.reason in DUPLICATES:
            pass  # neither an input of its own nor a problem
        elif ref.fault:
            self.faulty += 1
            self.fault = _first(self.fault, f"{ref.key}: {ref.fault.message}")
        else:
            self.labels.update(ref.labels)
            self.row_lengths[row_length(ref.location.form)] += 1
        return self

    def _compare(self, ref: InputRef, before: Before) -> None:
        place = before.split, before.shard
        if before.gone:
            self.changes["removed"] += 1
            self.gone = _first_few(self.gone, (ref.key,))
        elif before.added:
            self.changes["added"] += 1
        elif not before.same:
            self.changes["changed"] += 1
            self.replaced = _first_few(self.replaced, (ref.key,))
        self.stays[place] += int(not before.gone and not needs_place(ref))
        self.touched[place] += int(is_touched(ref, before))

    def merge(self, other: "Listing") -> "Listing":
        """Adds another part of the listing."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
        self.gone = _first_few(self.gone, other.gone)
        self.replaced = _first_few(self.replaced, other.replaced)
        self.faulty += other.faulty
        self.fault = _first(self.fault, other.fault)
        return self


def source_of(ref: InputRef, config: BuildConfig) -> str:
    """What the accounts call the source of an input; one that no source is asked for keeps what it had."""
    return ref.before.source if ref.is_carried and ref.before else config.source_name(ref.source)


def needs_place(ref: InputRef) -> bool:
    """Whether an input must find a place in a new shard: it is new, uprooted, or now given to another split."""
    before = ref.before
    return before is None or (not before.gone and (before.uprooted or before.split != ref.dealt))


def is_touched(ref: InputRef, before: Before) -> bool:
    """Whether the shard that holds an input must be made again: without it, or with what has become of it."""
    was, is_now = before.reason in DUPLICATES, bool(ref.fault and ref.fault.reason in DUPLICATES)
    return not before.same or before.again or before.gone or needs_place(ref) or was != is_now


def are_many(count: int, inputs: int) -> bool:
    """Whether these are more than a tenth of a dataset's inputs, which is taken for a mistake."""
    return count * 10 > inputs


def check_removals(listing: Listing, inputs: int) -> None:
    """Refuses to take more than a tenth of a dataset's inputs out of it: a source may be lost, or not be named."""
    removed = listing.changes["removed"]
    if are_many(removed, inputs):
        raise ShardsmithError(
            f"{removed:,} of the {inputs:,} inputs of the dataset are no longer in the sources, such as "
            f"{', '.join(listing.gone)}; nothing was written. If a source is not mounted, or not named in the config, "
            "mend that; if the config names only what is new, add --keep-missing: what is no longer listed then stays; "
            "if these inputs shall leave the dataset, add --allow-removals"
        )


def check_replacements(listing: Listing, inputs: int) -> None:
    """Refuses new inputs that have the keys of many others: what is kept must not be lost to what is called alike."""
    changed = listing.changes["changed"]
    if are_many(changed, inputs):
        raise ShardsmithError(
            f"{changed:,} inputs have the keys of others among the {inputs:,} of the dataset, such as "
            f"{', '.join(listing.replaced)}, and would take their places; nothing was written. If they are new ones, "
            "give their source a name, which stands before its keys (--set source.name=week2); if they are newer "
            "states of the same ones, leave out --keep-missing"
        )


def _first_few(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other})[:3])


def _first(one: str, other: str) -> str:
    return min(one, other) if one and other else one or other
