"""Which split an input goes to, and where it stands in it: hashes of names, the same on every machine."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from pipelines.config import BuildConfig, SplitsConfig
from pipelines.values import InputRef
from shards.errors import UsageError


def stable_hash(text: str, *, salt: str) -> int:
    """A 64-bit hash that is the same on every machine and in every release."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, key=salt.encode()[:64]).digest()
    return int.from_bytes(digest, "big")


def order_hash(key: str) -> int:
    """Where a key stands in its split; independent of the hash that chose the split."""
    return stable_hash(key, salt="order")


def unit_of(ref: InputRef) -> str:
    """What is dealt as one: the unit that was found, the group, or the input alone."""
    # An explicit group is hashed apart from keys, so that a group called like a key is not tied to it.
    return ref.unit or (f"group\0{ref.group}" if ref.group else ref.key)


def is_tied(ref: InputRef) -> bool:
    """Whether other inputs may have to be on the same side as this one."""
    return bool(ref.unit or ref.group) and not (ref.before and ref.before.gone)


def is_given(ref: InputRef, splits: SplitsConfig) -> bool:
    """Whether the source decides."""
    return bool(ref.split) and splits.use_given


def bound_side(ref: InputRef, splits: SplitsConfig) -> str:
    """The split that an input is bound to: found on the way, given by the source, or where the dataset has it."""
    if ref.dealt:
        return ref.dealt
    if is_given(ref, splits):
        return ref.split
    return ref.before.split if ref.before else ""


def follow_side(refs: Iterable[InputRef], splits: SplitsConfig) -> str:
    """The split that the unbound inputs of a unit go to: where most of the bound are, the first by name of several."""
    sides = Counter(side for ref in refs if (side := bound_side(ref, splits)))
    return min(sides, key=lambda side: (-sides[side], side), default="")


def unit_position(unit: str, splits: SplitsConfig) -> int:
    """Where a unit stands among all others: 64 bits of a salted hash."""
    return stable_hash(unit, salt=f"split\0{splits.salt}")


def split_at(position: int, splits: SplitsConfig) -> str:
    """The split that a position falls in by the fractions."""
    bound = 0.0
    for name, fraction in splits.fractions.items():
        bound += fraction
        if position / 2**64 < bound:
            return name
    return next(name for name, fraction in reversed(splits.fractions.items()) if fraction > 0)


def choose_split(ref: InputRef, splits: SplitsConfig) -> str:
    """The split the source gives, or the one that the salted hash of group or key falls in."""
    return ref.split if is_given(ref, splits) else split_at(unit_position(unit_of(ref), splits), splits)


def deal(ref: InputRef, splits: SplitsConfig) -> InputRef:
    """The ref with its split; an input that the dataset has stays in its own, unless the source gives another."""
    return ref._replace(dealt=bound_side(ref, splits) or choose_split(ref, splits))


def deal_unit(refs: Iterable[InputRef], splits: SplitsConfig, free: str = "") -> Iterator[InputRef]:
    """The refs of one unit with one split: that of those that are bound, or else `free` or what the hash says.

    Who is bound stays where it is, even if others of the unit are bound elsewhere. Goes through the refs twice.
    """
    side = follow_side(refs, splits) or free
    for ref in refs:
        yield ref._replace(dealt=bound_side(ref, splits) or side or choose_split(ref, splits))


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
