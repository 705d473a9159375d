"""A dataset that gives to its successor: whole shards, and single records, whose inputs have not changed.

The successor is built like any other dataset; it only finds that some of the work has been done.
"""

import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder, load_plan, load_receipt
from pipelines.plan import PREFIX_BITS, Plan
from pipelines.process import Made, Outcome, Task
from pipelines.seen import ACCOUNTS, IDENTITY, Identities
from pipelines.values import InputRef, PlannedShard, Receipt
from pipelines.write import Pending, Processor, Watcher, sort_refs, write_shard
from shards.files import open_atomically, write_atomically
from shards.records import DamagedRecord, read_index, read_records


def rewrite_shard(
    shard: PlannedShard,
    refs: Iterable[InputRef],
    *,
    donor: "Donor",
    plan: Plan,
    config: BuildConfig,
    decoders: Processor,
    watch: Watcher,
) -> Receipt:
    """Does what `write_shard` does, with the same result, but takes over what the donor has of it."""
    folder, ordered = BuildFolder(Path(config.output)), sort_refs(refs)
    if receipt := donor.give_shard(shard, ordered, plan=plan, folder=folder):
        return receipt
    recycler = Recycler(decoders, donor.records(shard, plan))
    receipt = write_shard(shard, ordered, plan=plan, config=config, decoders=recycler, watch=watch)
    write_atomically(folder.taken(shard), b"%d" % recycler.taken)
    return receipt


class Donor:
    """The dataset at `root`, as it was built."""

    def __init__(self, root: Path, config: BuildConfig) -> None:
        """The config is the successor's."""
        self._folder, self._config = BuildFolder(root), config
        self._plan = load_plan(self._folder.plan)
        self._label_ids = self._plan.label_ids

    def give_shard(
        self, shard: PlannedShard, ordered: Sequence[InputRef], *, plan: Plan, folder: BuildFolder
    ) -> Receipt | None:
        """Gives the shard of the same name to `folder` if it took all of the same inputs; else gives nothing."""
        old = self._folder
        try:
            receipt = load_receipt(old.receipt(shard))
            if not (receipt.listed == receipt.records == len(ordered) and self._same_ids(receipt.labels, plan)):
                return None
            identities = Identities(self._config)
            if _read_table(old.seen(shard))[IDENTITY].to_pylist() != [identities.of(ref) for ref in ordered]:
                return None
            for place in (BuildFolder.shard, BuildFolder.index, BuildFolder.facts, BuildFolder.seen):
                link_file(place(old, shard), place(folder, shard))
        except (OSError, ValueError):  # what cannot be read is made again
            return None
        link_file(old.receipt(shard), folder.receipt(shard))
        return receipt

    def _same_ids(self, labels: Iterable[str], plan: Plan) -> bool:
        ids = plan.label_ids
        return all(self._label_ids.get(label) == ids.get(label) for label in labels)

    def records(self, shard: PlannedShard, plan: Plan) -> "Records":
        """The records that may belong to a shard of the successor."""
        found: list[OldShard] = []
        for old in overlapping(shard, plan, self._plan):
            try:
                found.append(OldShard.open(self._folder, old))
            except (OSError, ValueError):
                continue
        return Records(found, Identities(self._config), self._label_ids)


def overlapping(shard: PlannedShard, plan: Plan, before: Plan) -> list[PlannedShard]:
    """The shards of the plan before whose range of hashes meets that of a shard."""
    starts = plan.split(shard.split).starts
    end = starts[shard.index + 1] if shard.index + 1 < len(starts) else 1 << PREFIX_BITS
    for split in before.splits:
        if split.name == shard.split:
            meeting = range(bisect_right(split.starts, starts[shard.index]) - 1, bisect_left(split.starts, end))
            return [PlannedShard(split.first_number + index, split.name, index) for index in meeting]
    return []


@dataclass(frozen=True)
class OldShard:
    """One shard of the donor, open for taking records from it."""

    path: Path
    extents: Sequence[Sequence[int]]
    seen: pa.Table
    facts: pa.Table

    @classmethod
    def open(cls, folder: BuildFolder, shard: PlannedShard) -> "OldShard":
        """Reads all but the records; raises OSError or ValueError if that cannot be done."""
        extents = read_index(folder.index(shard)).tolist()
        return cls(folder.shard(shard), extents, _read_table(folder.seen(shard)), _read_table(folder.facts(shard)))

    def made(self, row: int) -> Made | None:
        """The outcome that this record was; none if the record is damaged."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.extents[row][0])
                record = next(read_records(stream))[1]
        except (OSError, DamagedRecord, StopIteration):
            return None
        accounts = {name: self.seen[name][row].as_py() for name in ACCOUNTS}
        accounts["sides"] = tuple(accounts["sides"])
        return Made(record, tuple(column[row].as_py() for column in self.facts.columns), **accounts)


class Records:
    """The records of some shards of the donor, by the identity of their inputs."""

    def __init__(self, shards: Sequence[OldShard], identities: Identities, label_ids: Mapping[str, int]) -> None:
        """Holds an entry for each record, which is a few hundred bytes, and no record."""
        self._identities, self._label_ids = identities, label_ids
        self._places = {
            identity: (shard, row) for shard in shards for row, identity in enumerate(shard.seen[IDENTITY].to_pylist())
        }

    def find(self, task: Task) -> Made | None:
        """What became of the same input before, if its record would be the same now."""
        place = None if task.ref.fault else self._places.get(self._identities.of(task.ref))
        if place is None or tuple(self._label_ids.get(label) for label in task.ref.labels) != task.label_ids:
            return None
        shard, row = place
        return shard.made(row)


class Recycler:
    """Answers tasks from the donor's records where it can, and asks the decoders for the rest."""

    def __init__(self, decoders: Processor, records: Records) -> None:
        """`taken` counts what was answered without the decoders."""
        self._decoders, self._records = decoders, records
        self.count, self.taken = decoders.count, 0

    def submit(self, tasks: Sequence[Task], /) -> Pending:
        """Takes a group of tasks."""
        known = [self._records.find(task) for task in tasks]
        rest = [task for task, made in zip(tasks, known, strict=True) if made is None]
        self.taken += len(tasks) - len(rest)
        return _Mixed(known, self._decoders.submit(rest))


@dataclass(frozen=True)
class _Mixed:
    known: Sequence[Made | None]
    asked: Pending

    def result(self) -> list[Outcome]:
        answers = iter(self.asked.result())
        return [made or next(answers) for made in self.known]


def link_file(old: Path, new: Path) -> None:
    """Gives a file a second name, or copies it where that cannot be done."""
    new.unlink(missing_ok=True)  # an earlier attempt's
    try:
        os.link(old, new)
    except FileExistsError:  # a twin was faster
        return
    except OSError:
        with old.open("rb") as source, open_atomically(new) as stream:
            shutil.copyfileobj(source, stream)


def _read_table(path: Path) -> pa.Table:
    with pa.ipc.open_file(str(path)) as reader:
        return reader.read_all()
