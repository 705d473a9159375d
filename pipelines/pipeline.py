"""The Beam job.

List -> plan -> group references by shard -> write shards. Logic lives in the sibling modules; here is only wiring.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam

from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder, save_plan
from pipelines.plan import Listing, Plan, choose_split, make_plan
from pipelines.sources import list_partition, partition_source
from pipelines.values import ImageRef, PlannedShard, Receipt
from pipelines.write import Threads, write_shard


@dataclass(eq=False)
class ListImages(beam.PTransform):
    """Lists a source as references; each partition is listed by one worker."""

    config: BuildConfig

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[ImageRef]:
        """Root -> refs."""
        source = self.config.source
        return (
            root
            | "Partitions" >> beam.Create(partition_source(source))  # Partition
            | "Spread" >> beam.Reshuffle()  # Partition
            | "List" >> beam.FlatMap(list_partition, columns=source.columns).with_output_types(ImageRef)  # ImageRef
        )


@dataclass(eq=False)
class PlanShards(beam.PTransform):
    """Counts the refs and decides every shard: one Plan, stored at `path` too; none if there are no refs."""

    config: BuildConfig
    path: Path

    def expand(self, refs: beam.PCollection[ImageRef]) -> beam.PCollection[Plan]:
        """Refs -> one plan."""
        return (
            refs
            # Without defaults: for these Beam would hand the whole listing round as a side input.
            | "Count" >> beam.CombineGlobally(CountRefs(self.config)).without_defaults()  # Listing
            | "Plan" >> beam.Map(make_plan, config=self.config)  # Plan
            | "Store" >> beam.Map(_store_plan, path=self.path)  # Plan
        )


def _store_plan(plan: Plan, path: Path) -> Plan:
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

    def add_input(self, listing: Listing, ref: ImageRef) -> Listing:
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
    """Groups refs by shard, the only shuffle of the build, and writes each shard where its refs arrive."""

    config: BuildConfig
    plan: beam.pvalue.AsSingleton
    threads: int

    def expand(self, refs: beam.PCollection[ImageRef]) -> beam.PCollection[Receipt]:
        """Refs -> receipts."""
        return (
            refs
            | "KeyByShard" >> beam.Map(key_by_shard, self.plan, self.config).with_output_types(tuple[int, ImageRef])
            | "GroupByShard" >> beam.GroupByKey()  # (shard number, [ImageRef])
            | "WriteShard" >> beam.ParDo(WriteShard(self.config, self.threads), self.plan)  # Receipt
        )


def key_by_shard(ref: ImageRef, plan: Plan, config: BuildConfig) -> tuple[int, ImageRef]:
    """A ref with the number of the shard that will hold it."""
    return plan.split(choose_split(ref, config.splits)).shard_of(ref).number, ref


class WriteShard(beam.DoFn):
    """Writes one shard per element; a DoFn because the threads live as long as the worker."""

    def __init__(self, config: BuildConfig, threads: int) -> None:
        """`threads` is how many pictures one worker processes at once."""
        self._config, self._threads = config, threads

    def setup(self) -> None:
        """Starts the threads."""
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="image")

    def teardown(self) -> None:
        """Ends the threads."""
        self._executor.shutdown()

    def process(self, element: tuple[int, Iterable[ImageRef]], plan: Plan) -> Iterator[Receipt]:
        """(number, refs) -> the shard's receipt."""
        number, refs = element
        shard = plan.shards[number]
        yield write_shard(
            shard,
            refs,
            labels=plan.labels,
            config=self._config,
            threads=Threads(self._executor, self._threads),
            watch=_report_to(BuildFolder(Path(self._config.output)), shard),
        )


# Often enough for a person, rare enough to cost nothing.
_REPORT_SECONDS = 0.5


def _report_to(folder: BuildFolder, shard: PlannedShard) -> Callable[[int, int], None]:
    """A watcher that leaves the worker's counts where the driver looks for them."""
    last = time.monotonic()

    def watch(done: int, rejected: int) -> None:
        nonlocal last
        if time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            folder.progress(shard).write_bytes(b"%d %d" % (done, rejected))

    return watch
