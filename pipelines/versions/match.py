"""Joins the inputs that are there now with those that the dataset was made from.

Both sides meet in buckets of the keys' hashes, so that a worker holds a bucket at a time, however large the dataset is.
An input that is new passes as it is; one that the dataset knows learns where it lies and whether it has changed; and
for one that is gone there comes a ref that says so.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam

from pipelines.config import BuildConfig
from pipelines.planning.listing import PREFIX_BITS
from pipelines.planning.splits import order_hash
from pipelines.reasons import DUPLICATES
from pipelines.values import Before, InputRef, Location, PlannedShard
from pipelines.versions.carry import Carrier
from pipelines.workspace.layout import BuildFolder, load_receipts
from pipelines.writing.seen import IDENTITY, KEY, NOT_ITS_OWN, REASON, SOURCE, Identities, read_seen, to_text

BUCKET_INPUTS = 50_000
_COLUMNS = (KEY, IDENTITY, REASON, "content", "look", SOURCE)
Carry = Callable[[PlannedShard], Iterator[InputRef]]  # the inputs of a shard, carried over


@dataclass(eq=False)
class MatchInputs(beam.PTransform):
    """Tells refs their past.

    `retry` makes inputs that were rejected count as changed; `keep_missing` makes those stay that are no longer listed.
    """

    config: BuildConfig
    root: Path
    retry: bool = False
    keep_missing: bool = False

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[InputRef]:
        """Refs -> the same refs with their past, and refs to what is gone."""
        past = Known.of(self.root)
        carry = Carrier.of(self.root).refs if self.keep_missing else None
        # Every bucket is looked at, also one whose inputs are all gone.
        buckets = refs.pipeline | "Buckets" >> beam.Create([(number, 0) for number in range(past.buckets)])
        keyed = refs | "KeyByBucket" >> beam.Map(lambda ref: (past.bucket_of(ref.key), ref)).with_output_types(
            tuple[int, InputRef]
        )
        return (
            {"refs": keyed, "bucket": buckets}
            | "GroupByBucket" >> beam.CoGroupByKey()  # (bucket, {"refs": [InputRef], "bucket": [0]})
            | "Match" >> beam.FlatMap(_match, past, self.config, self.retry, carry).with_output_types(InputRef)
        )


def _match(
    element: tuple[int, dict[str, Iterable[InputRef]]],
    past: "Known",
    config: BuildConfig,
    retry: bool,
    carry: Carry | None,
) -> Iterator[InputRef]:
    number, groups = element
    return match_inputs(groups["refs"], past.inputs(number), config, retry=retry, carry=carry)


@dataclass(frozen=True)
class Known:
    """The inputs that a dataset was made from, in buckets of their hashes; holds only the bounds of each shard."""

    root: Path
    buckets: int
    ranges: tuple[tuple[PlannedShard, int, int], ...]

    @classmethod
    def of(cls, root: Path) -> "Known":
        """Enough buckets to keep each small."""
        receipts = load_receipts(BuildFolder(root))
        buckets = 1 + sum(receipt.listed for receipt in receipts) // BUCKET_INPUTS
        return cls(root, buckets, tuple((receipt.shard, *receipt.hashes) for receipt in receipts))

    def bucket_of(self, key: str) -> int:
        """The bucket that a key falls in."""
        return order_hash(key) * self.buckets >> 64

    def inputs(self, bucket: int) -> dict[str, list[Before]]:
        """What is known of the inputs of a bucket, by their keys."""
        found: defaultdict[str, list[Before]] = defaultdict(list)
        for shard, first, last in self.ranges:
            if first * self.buckets >> PREFIX_BITS <= bucket <= (last + 1) * self.buckets >> PREFIX_BITS:
                for key, before in read_past(BuildFolder(self.root), shard):
                    if self.bucket_of(key) == bucket:
                        found[key].append(before)
        return found


def read_past(folder: BuildFolder, shard: PlannedShard) -> Iterator[tuple[str, Before]]:
    """The inputs of a shard with their keys, in the order of the shard."""
    table = read_seen(folder.seen(shard), _COLUMNS)
    for key, identity, *rest in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
        reason, content, look, source = rest
        before = Before(shard.split, shard.index, identity, reason=reason, content=content, look=look, source=source)
        yield to_text(key), before


def match_inputs(
    refs: Iterable[InputRef],
    past: dict[str, list[Before]],
    config: BuildConfig,
    *,
    retry: bool,
    carry: Carry | None = None,
) -> Iterator[InputRef]:
    """The refs with their past, then a ref for each input that is gone; with `carry`, these are carried over."""
    identities = Identities(config)
    by_key: defaultdict[str, list[InputRef]] = defaultdict(list)
    for ref in refs:
        by_key[ref.key].append(ref)
    for key, found in by_key.items():
        befores = past.pop(key, [])
        matched = list(match_key(found, befores, [identities.of(ref) for ref in found], retry=retry))
        if carry and any(map(_lost_its_original, matched)):
            past[key] = befores
        else:
            yield from matched
    yield from _carry_over(past, carry) if carry else _let_go(past)


def _lost_its_original(ref: InputRef) -> bool:
    """Whether an input was a duplicate of another, which is no longer listed."""
    return bool(ref.before and ref.before.same and ref.before.reason in DUPLICATES and not ref.fault)


def _carry_over(past: dict[str, list[Before]], carry: Carry) -> Iterator[InputRef]:
    places = {(before.split, before.shard) for befores in past.values() for before in befores}
    for place in sorted(places):
        yield from (ref for ref in carry(PlannedShard(-1, *place)) if ref.key in past)


def _let_go(past: dict[str, list[Before]]) -> Iterator[InputRef]:
    for key, befores in past.items():
        for before in befores:
            yield InputRef(key, Location("", 0), before=before._replace(same=False, gone=True), dealt=before.split)


def match_key(
    refs: Sequence[InputRef], befores: Sequence[Before], identities: Sequence[int], *, retry: bool
) -> Iterator[InputRef]:
    """Matches the inputs of one key, which are one but for mistakes: several are the same only all together."""
    if not befores:
        yield from refs
        return
    same = sorted(identities) == sorted(before.identity for before in befores)
    left = sorted(befores)
    # Those that are what they were come first, so that no other takes their place.
    known = {before.identity for before in befores}
    for ref, identity in sorted(zip(refs, identities, strict=True), key=lambda pair: (pair[1] not in known, pair[1])):
        before = _find_before(ref, identity, left)
        if before is None:
            # It is written beside the others of its key, where it is found to be one too many.
            beside = next((each for each in sorted(befores) if each.split == ref.split), min(befores))
            yield ref._replace(before=Before(beside.split, beside.shard, identity, same=False, added=True))
            continue
        left.remove(before)
        # Who of several is the first, and who are the others, is settled again where they are written.
        reason = "" if len(refs) > 1 and before.reason in NOT_ITS_OWN else before.reason
        again = retry and bool(reason) and reason not in NOT_ITS_OWN
        yield ref._replace(before=before._replace(same=same, again=again, reason=reason))
    yield from _let_go({refs[0].key: left})


def _find_before(ref: InputRef, identity: int, left: Sequence[Before]) -> Before | None:
    """Which of the inputs of its key it was: the same one, else one of its split, else any."""
    ranks = [(before.identity != identity, before.split != ref.split, before) for before in left]
    return min(ranks)[2] if ranks else None
