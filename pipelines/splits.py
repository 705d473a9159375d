"""Which split an input goes to, and where it stands in it: hashes of names, the same on every machine."""

import hashlib
from collections.abc import Iterable

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


def choose_split(ref: InputRef, splits: SplitsConfig) -> str:
    """The split the source gives, or the one that the salted hash of group or key falls in."""
    if ref.split and splits.use_given:
        return ref.split
    position = stable_hash(unit_of(ref), salt=f"split\0{splits.salt}") / 2**64
    bound = 0.0
    for name, fraction in splits.fractions.items():
        bound += fraction
        if position < bound:
            return name
    return next(name for name, fraction in reversed(splits.fractions.items()) if fraction > 0)


def deal(ref: InputRef, splits: SplitsConfig) -> InputRef:
    """The ref with its split; an input that the dataset has stays in its own, unless the source gives another."""
    if ref.dealt:
        return ref
    if ref.before and not (ref.split and splits.use_given):
        return ref._replace(dealt=ref.before.split)
    return ref._replace(dealt=choose_split(ref, splits))


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
