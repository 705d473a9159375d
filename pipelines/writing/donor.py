"""What an earlier run has made gives to this one: whole shards, and single records, whose inputs have not changed.

A shard is written like any other; its writer only finds that some of the work has been done.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from pipelines.config import BuildConfig
from pipelines.pictures.process import Made, Outcome, Refused, Task
from pipelines.planning.plan import Past, Plan
from pipelines.reasons import ALIKE, DUPLICATES
from pipelines.values import InputRef, PlannedShard, Receipt
from pipelines.workspace.layout import BuildFolder, load_receipt
from pipelines.writing.seen import ACCOUNTS, IDENTITY, NOT_ITS_OWN, REASON, Identities, read_seen
from pipelines.writing.write import Pending, Processor, Watcher, sort_refs, write_shard
from shards.errors import ShardsmithError
from shards.files import write_atomically
from shards.records import DamagedRecord, read_index, read_records


@dataclass(frozen=True)
class Donor:
    """An earlier run's folder; `retry` makes it keep to itself what was rejected there.

    With `keep_missing` it gives also what is no longer listed.
    """

    root: Path
    retry: bool = False
    keep_missing: bool = False

    @property
    def folder(self) -> BuildFolder:
        """Where everything lies."""
        return BuildFolder(self.root)


@dataclass(frozen=True)
class Earlier:
    """What earlier runs leave to this one: an interrupted run of it, the version before, and what binds its plan."""

    begun: Donor | None = None
    past: Donor | None = None
    bound: Past = field(default_factory=Past)


FROM_NOTHING = Earlier()


def rewrite_shard(
    shard: PlannedShard,
    refs: Iterable[InputRef],
    *,
    begun: Donor,
    past: Donor | None,
    plan: Plan,
    config: BuildConfig,
    decoders: Processor,
    watch: Watcher,
) -> Receipt:
    """Does what `write_shard` does, with the same result, but takes over what is there.

    `begun` is an interrupted run of the same build, and `past` the version before.
    """
    ordered = sort_refs(refs)
    if receipt := find_finished(shard, ordered, begun=begun, plan=plan, config=config):
        return receipt
    again = begun.folder.receipt(shard).exists()
    places = [(begun, shard)]
    if past and shard.number in plan.origins:
        places.append((past, plan.origins[shard.number]))
    carried = open_carried(ordered, past) if past else []
    recycler = Recycler(decoders, Records(open_shards(places), Identities(config), carried))
    receipt = write_shard(shard, ordered, plan=plan, config=config, decoders=recycler, watch=watch)
    notes = b"%d %d %d" % (recycler.taken, recycler.refused, again)
    write_atomically(BuildFolder(Path(config.output)).taken(shard), notes)
    return receipt


def find_finished(
    shard: PlannedShard, ordered: Sequence[InputRef], *, begun: Donor, plan: Plan, config: BuildConfig
) -> Receipt | None:
    """The receipt of a shard that is already whole: made of the same inputs, with all its files in place."""
    folder = begun.folder
    try:
        receipt = load_receipt(folder.receipt(shard))
        seen = read_seen(folder.seen(shard), (IDENTITY, REASON))
        if begun.retry and set(seen[REASON].to_pylist()) - NOT_ITS_OWN - {""}:
            return None
        identities = Identities(config)
        same = seen[IDENTITY].to_pylist() == [identities.of(ref) for ref in ordered]
        same = same and _left_out(seen[REASON].to_pylist()) == _left_out(_reason_of(ref) for ref in ordered)
        whole = (folder.shard(shard).stat().st_size, len(read_index(folder.index(shard))))
        there = folder.facts(shard).exists() and folder.rejects(shard).exists() == (receipt.listed > receipt.records)
    except (OSError, ValueError):  # what cannot be read is made again
        return None
    same_ids = receipt.label_ids.items() <= plan.label_ids.items()
    return receipt if same and there and same_ids and whole == (receipt.bytes, receipt.records) else None


def _left_out(reasons: Iterable[str]) -> list[str]:
    """The reasons that other inputs are to blame for: these may come and go while an input stays what it is."""
    return [reason if reason in ALIKE else "" for reason in reasons]


def _reason_of(ref: InputRef) -> str:
    """Why an input is left out before it is opened, if it is."""
    return ref.fault.reason if ref.fault else ""


def open_shards(places: Iterable[tuple[Donor, PlannedShard]]) -> list["OldShard"]:
    """The shards that can be read, open for taking records from them."""
    found: list[OldShard] = []
    for donor, shard in places:
        try:
            found.append(OldShard.open(donor, shard))
        except (OSError, ValueError):
            continue
    return found


def open_carried(refs: Iterable[InputRef], past: Donor) -> list["OldShard"]:
    """The shards that inputs are carried over from, each with what is known of these inputs alone."""
    wanted: defaultdict[PlannedShard, list[int]] = defaultdict(list)
    for ref in refs:
        if ref.is_carried and ref.before:
            wanted[PlannedShard(-1, ref.before.split, ref.before.shard)].append(ref.location.offset)
    return [found.only(places) for shard, places in wanted.items() for found in open_shards([(past, shard)])]


@dataclass(frozen=True)
class OldShard:
    """One shard of a donor; `rows` are the inputs that became records, in their order.

    `outcomes` says of all inputs which record or which of the `rejects` they became: record 3 is 3, reject 3 is -4.
    """

    path: Path
    extents: Sequence[Sequence[int]]
    rows: pa.Table
    facts: pa.Table
    label_ids: Mapping[str, int]
    outcomes: Mapping[int, int]
    rejects_path: Path

    @classmethod
    def open(cls, donor: Donor, shard: PlannedShard) -> "OldShard":
        """Reads all but the records; raises OSError or ValueError if that cannot be done."""
        folder = donor.folder
        extents = read_index(folder.index(shard)).tolist()
        seen = read_seen(folder.seen(shard))
        rows = seen.filter(pa.compute.equal(seen[REASON], ""))
        facts = read_table(folder.facts(shard))
        if not len(extents) == len(rows) == len(facts):
            raise ValueError(f"{folder.shard(shard)}: index, facts and inputs do not fit")
        made, refused = itertools.count(), itertools.count(-1, -1)
        outcomes = dict(enumerate(next(refused if reason else made) for reason in seen[REASON].to_pylist()))
        label_ids = load_receipt(folder.receipt(shard)).label_ids
        return cls(folder.shard(shard), extents, rows, facts, label_ids, outcomes, folder.rejects(shard))

    def only(self, places: Iterable[int]) -> "OldShard":
        """The same shard as if it had only these of its inputs."""
        chosen = {place: self.outcomes[place] for place in sorted(places)}
        records = [number for number in chosen.values() if number >= 0]
        rows = {number: row for row, number in enumerate(records)}
        taken = pa.array(records, pa.int64())
        return replace(
            self,
            extents=[self.extents[number] for number in records],
            rows=self.rows.take(taken),
            facts=self.facts.take(taken),
            outcomes={place: rows.get(number, number) for place, number in chosen.items()},
        )

    @cached_property
    def rejects(self) -> list[dict[str, Any]]:
        """The lines of what the shard did not take."""
        with self.rejects_path.open(encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    def outcome(self, place: int) -> Outcome | None:
        """What became of the input at a place in the shard's order; none if that is damaged."""
        number = self.outcomes[place]
        return self.made(number) if number >= 0 else self.refused(-number - 1)

    def refused(self, number: int) -> Refused | None:
        """The outcome that this reject was; its bytes, if they were kept, stay where they are."""
        try:
            row = self.rejects[number]
        except (OSError, ValueError, IndexError):
            return None
        return Refused(row["reason"], row["message"], row["bytes"], row["sha256"], location=row["location"])

    def made(self, row: int) -> Made | None:
        """The outcome that this record was; none if the record is damaged."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.extents[row][0])
                record = next(read_records(stream))[1]
        except (OSError, DamagedRecord, StopIteration):
            return None
        accounts = {name: self.rows[name][row].as_py() for name in ACCOUNTS}
        accounts["sides"] = tuple(accounts["sides"])
        return Made(record, tuple(column[row].as_py() for column in self.facts.columns), **accounts)


class Records:
    """The records of some older shards, by the identity of their inputs; of the `carried` ones, by their place."""

    def __init__(self, shards: Sequence[OldShard], identities: Identities, carried: Sequence[OldShard] = ()) -> None:
        """Holds an entry for each record, which is a few hundred bytes, and no record."""
        self._identities = identities
        self._carried = {str(shard.path): shard for shard in carried}
        self._places = {
            identity: (shard, row) for shard in shards for row, identity in enumerate(shard.rows[IDENTITY].to_pylist())
        }

    def find(self, task: Task) -> Outcome | None:
        """What became of the same input before, if its record would be the same now."""
        if task.ref.is_carried:
            return self._carry(task.ref)
        place = None if task.ref.fault else self._places.get(self._identities.of(task.ref))
        if place is None:
            return None
        shard, row = place
        if tuple(shard.label_ids.get(label) for label in task.ref.labels) != task.label_ids:
            return None
        return shard.made(row)

    def _carry(self, ref: InputRef) -> Outcome:
        """What became of an input of which there is nothing else."""
        shard = self._carried.get(ref.location.path)
        outcome = shard.outcome(ref.location.offset) if shard else None
        if outcome is None:
            raise ShardsmithError(
                f"{ref.location.path}: the record of {ref.key} cannot be read, and it is not made anew: "
                "`python -m shards verify` lists all damage, `python -m pipelines repair` mends it"
            )
        return outcome


class Recycler:
    """Answers tasks from the donor's records where it can, and asks the decoders for the rest."""

    def __init__(self, decoders: Processor, records: Records) -> None:
        """`taken` and `refused` count what was answered without the decoders: records, and rejects."""
        self._decoders, self._records = decoders, records
        self.count, self.taken, self.refused = decoders.count, 0, 0

    def submit(self, tasks: Sequence[Task], /) -> Pending:
        """Takes a group of tasks."""
        known = [self._records.find(task) for task in tasks]
        rest = [task for task, outcome in zip(tasks, known, strict=True) if outcome is None]
        self.taken += sum(isinstance(outcome, Made) for outcome in known)
        self.refused += sum(isinstance(each, Refused) and each.reason not in DUPLICATES for each in known)
        return _Mixed(known, self._decoders.submit(rest) if rest else None)


@dataclass(frozen=True)
class _Mixed:
    known: Sequence[Outcome | None]
    asked: Pending | None

    def result(self) -> list[Outcome]:
        answers = iter(self.asked.result() if self.asked else ())
        return [outcome or next(answers) for outcome in self.known]


def read_table(path: Path) -> pa.Table:
    """The rows of an Arrow file; raises OSError or ValueError if they cannot be read."""
    with pa.ipc.open_file(str(path)) as reader:
        return reader.read_all()
