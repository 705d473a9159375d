"""Joins the inputs that are there now with those that the dataset was made from.

Both sides meet in buckets of the keys' hashes, so that a worker holds a bucket at a time, however large the dataset is.
An input that is new passes as it is; one that the dataset knows learns where it lies and whether it has changed; and
for one that is gone there comes a ref that says so.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam

from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder, load_receipts
from pipelines.listing import PREFIX_BITS
from pipelines.seen import IDENTITY, KEY, NOT_ITS_OWN, REASON, Identities, read_seen, to_text
from pipelines.splits import order_hash
from pipelines.values import Before, InputRef, Location, PlannedShard

BUCKET_INPUTS = 50_000
_COLUMNS = (KEY, IDENTITY, REASON, "content", "look")


@dataclass(eq=False)
class MatchInputs(beam.PTransform):
    """Tells refs their past; `retry` makes inputs that were rejected count as changed."""

    config: BuildConfig
    root: Path
    retry: bool = False

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[InputRef]:
        """Refs -> the same refs with their past, and refs to what is gone."""
        past = Known.of(self.root)
        # Every bucket is looked at, also one whose inputs are all gone.
        buckets = refs.pipeline | "Buckets" >> beam.Create([(number, 0) for number in range(past.buckets)])
        keyed = refs | "KeyByBucket" >> beam.Map(lambda ref: (past.bucket_of(ref.key), ref)).with_output_types(
            tuple[int, InputRef]
        )
        return (
            {"refs": keyed, "bucket": buckets}
            | "GroupByBucket" >> beam.CoGroupByKey()  # (bucket, {"refs": [InputRef], "bucket": [0]})
            | "Match" >> beam.FlatMap(_match, past, self.config, self.retry).with_output_types(InputRef)
        )


def _match(
    element: tuple[int, dict[str, Iterable[InputRef]]], past: "Known", config: BuildConfig, retry: bool
) -> Iterator[InputRef]:
    number, groups = element
    return match_inputs(groups["refs"], past.inputs(number), config, retry=retry)


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
    for key, identity, reason, content, look in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
        yield to_text(key), Before(shard.split, shard.index, identity, reason=reason, content=content, look=look)


def match_inputs(
    refs: Iterable[InputRef], past: dict[str, list[Before]], config: BuildConfig, *, retry: bool
) -> Iterator[InputRef]:
    """The refs with their past, then a ref for each input that is gone."""
    identities = Identities(config)
    by_key: defaultdict[str, list[InputRef]] = defaultdict(list)
    for ref in refs:
        by_key[ref.key].append(ref)
    for key, found in by_key.items():
        yield from match_key(found, past.pop(key, []), [identities.of(ref) for ref in found], retry=retry)
    for key, befores in past.items():
        for before in befores:
            yield InputRef(key, Location("", 0), before=before._replace(same=False, gone=True), dealt=before.split)


def match_key(
    refs: Sequence[InputRef], befores: Sequence[Before], identities: Sequence[int], *, retry: bool
) -> Iterator[InputRef]:
    """Matches the inputs of one key, which are one but for mistakes: several are the same only all together."""
    same = sorted(identities) == sorted(before.identity for before in befores)
    left = sorted(befores)
    for ref, identity in sorted(zip(refs, identities, strict=True), key=lambda pair: pair[1]):
        if not left:
            yield ref
            continue
        before = next((each for each in left if each.identity == identity), left[0])
        left.remove(before)
        # Who of several is the first, and who are the others, is settled again where they are written.
        reason = "" if len(refs) > 1 and before.reason in NOT_ITS_OWN else before.reason
        again = retry and bool(reason) and reason not in NOT_ITS_OWN
        yield ref._replace(before=before._replace(same=same and not again, reason=reason))
    for before in left:
        yield InputRef(refs[0].key, Location("", 0), before=before._replace(same=False, gone=True), dealt=before.split)
