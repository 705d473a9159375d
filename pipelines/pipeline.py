"""The Beam job.

List -> plan -> group references by shard -> write shards. Logic lives in the sibling modules; here is only wiring.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apache_beam as beam

import pipelines.inputs.coders  # noqa: F401  (registers how refs travel)
from pipelines.config import BuildConfig
from pipelines.decoding.decoders import DecoderPool
from pipelines.inputs.overlaps import mark_overlaps, place_of
from pipelines.planning.listing import Listing
from pipelines.planning.plan import Past, Plan, make_plan
from pipelines.sources import list_partition, partition_sources
from pipelines.sources.base import Partition
from pipelines.sources.rows import read_names
from pipelines.values import InputRef, PlannedShard, Receipt
from pipelines.versions.scan import PartitionDigest
from pipelines.workspace.layout import BuildFolder, save_plan
from pipelines.workspace.lock import UNANNOUNCED, Run
from pipelines.writing.donor import Donor, rewrite_shard
from pipelines.writing.write import write_shard
from shards.files import naming_after


@dataclass(eq=False)
class ListInputs(beam.PTransform):
    """Lists the sources as references; each partition is listed by one worker.

    What cannot be read in place is copied to `spool` on the way; a dry run has none.
    """

    config: BuildConfig
    spool: str = ""
    run: Run = UNANNOUNCED

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[InputRef]:
        """Root -> refs."""
        refs = (
            root
            | "Partitions" >> beam.Create(partition_sources(self.config))  # Partition
            | "Spread" >> beam.Reshuffle()  # Partition
            | "List"
            >> beam.FlatMap(list_refs, self.config, self.spool, self.run).with_output_types(InputRef)  # InputRef
        )
        # One source cannot overlap with another, and is spared the shuffle.
        return refs | "MarkOverlaps" >> MarkOverlaps(self.config) if len(self.config.all_sources) > 1 else refs


@dataclass(eq=False)
class MarkOverlaps(beam.PTransform):
    """Marks inputs that an earlier source names too."""

    config: BuildConfig

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[InputRef]:
        """Refs -> the same refs, some with a fault."""
        names = tuple(self.config.source_name(number) for number in range(len(self.config.all_sources)))
        return (
            refs
            | "KeyByPlace" >> beam.Map(lambda ref: (place_of(ref), ref)).with_output_types(tuple[str, InputRef])
            | "GroupByPlace" >> beam.GroupByKey()  # (place, [InputRef])
            | "Refs" >> beam.Values()  # [InputRef]
            | "Mark" >> beam.FlatMap(mark_overlaps, names).with_output_types(InputRef)  # InputRef
        )


def list_refs(part: Partition, config: BuildConfig, spool: str, run: Run = UNANNOUNCED) -> Iterator[InputRef]:
    """The refs of a partition; a build, unlike a dry run, leaves number and digest where the driver looks for them."""
    with naming_after(run.check):
        refs = list_partition(part, config, spool)
    if not spool:
        return refs
    return _count_to(BuildFolder(Path(config.output)).listing(part.number), refs, PartitionDigest(part, config))


@dataclass(eq=False)
class PlanShards(beam.PTransform):
    """Counts the refs and decides every shard: one Plan, stored at `path` too; none if there are no refs."""

    config: BuildConfig
    path: Path
    past: Past | None = None
    run: Run = UNANNOUNCED

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[Plan]:
        """Refs -> one plan."""
        names = read_names(self.config)
        return (
            refs
            # Without defaults: for these Beam would hand the whole listing round as a side input.
            | "Count" >> beam.CombineGlobally(CountRefs(self.config)).without_defaults()  # Listing
            | "Plan" >> beam.Map(make_plan, config=self.config, label_names=names, past=self.past)  # Plan
            | "Store" >> beam.Map(_store_plan, path=self.path, run=self.run)  # Plan
        )


def _store_plan(plan: Plan, path: Path, run: Run) -> Plan:
    with naming_after(run.check):
        save_plan(plan, path)
    return plan


class CountRefs(beam.CombineFn):
    """Adds refs up to a Listing, whose size is bounded by the number of hash prefixes, not of images."""

    def __init__(self, config: BuildConfig) -> None:
        """The config decides splits and size estimates."""
        self._config = config

    def create_accumulator(self) -> Listing:
        """Nothing counted."""
        return Listing()

    def add_input(self, listing: Listing, ref: InputRef) -> Listing:
        """Counts one ref."""
        return listing.add(ref, self._config)

    def merge_accumulators(self, listings: Iterable[Listing]) -> Listing:
        """Adds parts up."""
        total = Listing()
        for listing in listings:
            total.merge(listing)
        return total

    def extract_output(self, listing: Listing) -> Listing:
        """The listing itself."""
        return listing


@dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Groups refs by shard, the only shuffle of a first build, and writes each shard where its refs arrive."""

    config: BuildConfig
    plan: beam.pvalue.AsSingleton
    decoders: int
    begun: Donor | None = None  # an interrupted run of the same build
    past: Donor | None = None  # the version before
    run: Run = UNANNOUNCED

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[Receipt]:
        """Refs -> receipts."""
        write = WriteShard(self.config, self.decoders, self.begun, self.past, self.run)
        return (
            refs
            | "KeyByShard" >> beam.FlatMap(key_by_shard, self.plan).with_output_types(tuple[int, InputRef])
            | "GroupByShard" >> beam.GroupByKey()  # (shard number, [InputRef])
            | "WriteShard" >> beam.ParDo(write, self.plan)  # Receipt
        )


def key_by_shard(ref: InputRef, plan: Plan) -> Iterator[tuple[int, InputRef]]:
    """A ref with the number of the shard to write that will hold it, if there is one."""
    shard = None if ref.before and ref.before.gone else plan.shard_of(ref)
    if shard:
        yield shard.number, ref


class WriteShard(beam.DoFn):
    """Writes one shard per element; a DoFn because the decoders live as long as the worker."""

    def __init__(
        self, config: BuildConfig, decoders: int, begun: Donor | None, past: Donor | None, run: Run = UNANNOUNCED
    ) -> None:
        """`decoders` is how many inputs one worker processes at once."""
        self._config, self._count, self._begun, self._past = config, decoders, begun, past
        self._check = run.check

    def setup(self) -> None:
        """Starts the decoders."""
        self._decoders = DecoderPool(self._config, self._count)
        self._write: Callable[..., Receipt] = write_shard
        if self._begun:
            self._write = partial(rewrite_shard, begun=self._begun, past=self._past)

    def teardown(self) -> None:
        """Lets the decoders go."""
        self._decoders.close()

    def process(self, element: tuple[int, Iterable[InputRef]], plan: Plan) -> Iterator[Receipt]:
        """(number, refs) -> the shard's receipt."""
        number, refs = element
        shard = plan.shards[number]
        self._check()
        with naming_after(self._check):
            receipt = self._write(
                shard,
                refs,
                plan=plan,
                config=self._config,
                decoders=self._decoders,
                watch=report_to(BuildFolder(Path(self._config.output)), shard),
            )
        yield receipt


def _count_to(path: Path, refs: Iterable[InputRef], digest: PartitionDigest) -> Iterator[InputRef]:
    last, count = time.monotonic(), 0
    for count, ref in enumerate(refs, start=1):
        yield ref
        digest.add(ref)
        if time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            path.write_bytes(b"%d" % count)
    path.write_bytes(b"%d %d" % (count, digest.value))


# Often enough for a person, rare enough to cost nothing.
_REPORT_SECONDS = 0.5


def report_to(folder: BuildFolder, shard: PlannedShard) -> Callable[[int, int], None]:
    """A watcher that leaves the worker's counts where the driver looks for them."""
    last = time.monotonic()

    def watch(done: int, rejected: int) -> None:
        nonlocal last
        if time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            folder.progress(shard).write_bytes(b"%d %d" % (done, rejected))

    return watch
