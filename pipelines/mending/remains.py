"""Makes a damaged shard again from what is left of it, and from those inputs of whose records nothing good is left.

A shard is a function of its inputs, so that it comes out as it was, byte for byte, or is seen not to.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from pipelines.config import BuildConfig
from pipelines.pictures.process import Made, Outcome
from pipelines.planning.plan import Plan
from pipelines.reasons import Reason
from pipelines.values import Fault, InputRef, PlannedShard
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.donor import Donor, Records, Recycler, open_shards, read_table
from pipelines.writing.facts import RowWriter, facts_schema
from pipelines.writing.seen import IDENTITY, KEY, REASON, Identities, read_seen, to_text
from pipelines.writing.write import Processor, Watcher, process_ahead, write_shard
from shards.files import open_atomically
from shards.manifest import ShardEntry
from shards.records import FRAMING_BYTES, DamagedRecord, RecordWriter, read_index, read_records

_GONE = "is gone"


@dataclass(frozen=True)
class Job:
    """A shard of `root` to make again; `damaged` are those of its files that are, by their names in the dataset.

    Which inputs are its own is what `state/seen` tells. Where nothing is left to tell that, they are those of a `range`
    of hashes that no other shard has.
    """

    root: Path
    shard: PlannedShard
    entry: ShardEntry
    damaged: frozenset[str]
    range: tuple[int, int] | None = None

    @property
    def folder(self) -> BuildFolder:
        """Where the damaged shard lies."""
        return BuildFolder(self.root)

    @property
    def knows_its_inputs(self) -> bool:
        """Whether it is known by what its inputs can be known again."""
        return self.is_good(self.folder.seen(self.shard))

    @property
    def is_partial(self) -> bool:
        """Whether its records tell all that is missing, so that inputs whose records are good are not looked at."""
        makable = {
            self.name_of(place(self.shard)) for place in (self.folder.shard, self.folder.index, self.folder.facts)
        }
        return self.damaged <= makable and self.knows_its_inputs

    def could_hold(self, split: str, prefix: int) -> bool:
        """Whether an input of which no shard is known to have it can be its own."""
        return self.range is not None and split == self.shard.split and self.range[0] <= prefix <= self.range[1]

    def is_good(self, path: Path) -> bool:
        """Whether a file of the shard is what it was."""
        return path.exists() and self.name_of(path) not in self.damaged

    def name_of(self, path: Path) -> str:
        """The name of a file in the dataset."""
        return path.relative_to(self.root).as_posix()


@dataclass
class Note:
    """What is told of a shard that was made again: the inputs that are `lost`, and why, and those that have `changed`.

    Some were `read`, and the records of others `taken` over.
    """

    lost: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    read: int = 0
    taken: int = 0


def mend_shard(
    job: Job, refs: Sequence[InputRef], *, plan: Plan, config: BuildConfig, decoders: Processor, watch: Watcher
) -> Note:
    """Makes the shard again in the config's output; whether it is what it was, is for its checksums to tell."""
    labels = frozenset(plan.labels)
    there = [_check_labels(ref, labels) for ref in refs if not (ref.before and ref.before.gone)]
    changed = [ref.key for ref in there if ref.before and not ref.before.same] if job.knows_its_inputs else []
    for trusted in (True, False):
        if job.is_partial:
            note, sha256 = _mend_records(job, there, Remains.of(job, trusted), plan, config, decoders, watch)
        else:
            note, sha256 = _mend_all(job, there, trusted, plan, config, decoders, watch)
        # Records that pass their checksums may be those of another file; then nothing of it is of use.
        if sha256 == job.entry.sha256 or note.lost or not note.taken:
            break
    note.changed = changed
    if not job.is_partial:
        note.lost |= {ref.key: _GONE for ref in refs if ref.before and ref.before.gone}
    return note


def _check_labels(ref: InputRef, labels: Set[str]) -> InputRef:
    """The ref, with a fault if it now has a label that the dataset does not."""
    strange = sorted(set(ref.labels) - labels)
    if not strange:
        return ref
    return ref._replace(fault=Fault(Reason.BAD_ROW, f"label {strange[0]!r} is none of the dataset's"))


def _mend_all(
    job: Job,
    refs: Sequence[InputRef],
    trusted: bool,
    plan: Plan,
    config: BuildConfig,
    decoders: Processor,
    watch: Watcher,
) -> tuple[Note, str]:
    """Writes everything that a shard consists of; takes over the records of inputs that are what they were."""
    if not refs:
        return Note(), ""
    places = [(Donor(job.root), job.shard)] if trusted and job.knows_its_inputs else []
    recycler = Recycler(decoders, Records(open_shards(places), Identities(config)))
    receipt = write_shard(job.shard, refs, plan=plan, config=config, decoders=recycler, watch=watch)
    were_records = {ref.key for ref in refs if ref.before and not ref.before.reason}
    rejects = read_rejects(BuildFolder(Path(config.output)).rejects(job.shard))
    lost = {each["key"]: f"is now {each['reason']}: {each['message']}" for each in rejects}
    note = Note({key: lost[key] for key in lost if key in were_records})
    note.read, note.taken = len(refs) - recycler.taken, recycler.taken
    return note, receipt.sha256


def read_rejects(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of rejects; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _mend_records(
    job: Job,
    refs: Sequence[InputRef],
    remains: "Remains",
    plan: Plan,
    config: BuildConfig,
    decoders: Processor,
    watch: Watcher,
) -> tuple[Note, str]:
    """Writes records, index and facts; opens only the inputs of whose record or facts nothing good is left."""
    folder, note = BuildFolder(Path(config.output)), Note()
    missing = [row for row in range(remains.count) if remains.record(row) is None or remains.fact(row) is None]
    remade = _remake(missing, remains, refs, plan.label_ids, decoders)
    facts = RowWriter(facts_schema(config, plan.content))
    with open_atomically(folder.shard(job.shard)) as stream, open_atomically(folder.index(job.shard)) as index:
        writer = RecordWriter(stream, index)
        for row in range(remains.count):
            record, fact = remains.record(row), remains.fact(row)
            if record is None or fact is None:
                made = next(remade)
                if isinstance(made, Made):
                    record, fact = record or made.record, fact or made.facts
                else:
                    note.lost[remains.keys[row]] = f"is now {made.reason}: {made.message}" if made else _GONE
            if record is not None:
                writer.write(record)
            if fact is not None:
                facts.add(fact)
            watch(row + 1, len(note.lost))
    facts.save(folder.facts(job.shard))
    note.read, note.taken = len(missing) - sum(why == _GONE for why in note.lost.values()), remains.count - len(missing)
    return note, writer.finish().sha256


def _remake(
    rows: Sequence[int],
    remains: "Remains",
    refs: Iterable[InputRef],
    label_ids: Mapping[str, int],
    decoders: Processor,
) -> Iterator[Outcome | None]:
    """What the inputs of some rows give now; none for an input that is gone."""
    found = {(ref.key, ref.before.identity): ref for ref in refs if ref.before}
    there = [found.get((remains.keys[row], remains.identities[row])) for row in rows]
    outcomes = process_ahead([ref for ref in there if ref], label_ids, decoders)
    for ref in there:
        yield next(outcomes)[1] if ref else None


@dataclass(frozen=True)
class Remains:
    """What is left of a shard; its rows are the inputs that became records."""

    path: Path
    keys: Sequence[str]
    identities: Sequence[int]
    extents: Sequence[tuple[int, int]]
    facts: pa.Table | None

    @classmethod
    def of(cls, job: Job, trusted: bool) -> "Remains":
        """All that is good; if it is not to be `trusted`, only the names of the inputs."""
        folder, shard = job.folder, job.shard
        seen = read_seen(folder.seen(shard))
        rows = seen.filter(pa.compute.equal(seen[REASON], ""))
        return cls(
            path=folder.shard(shard),
            keys=[to_text(key) for key in rows[KEY].to_pylist()],
            identities=rows[IDENTITY].to_pylist(),
            extents=find_extents(job) if trusted else [],
            facts=read_table(folder.facts(shard)) if trusted and job.is_good(folder.facts(shard)) else None,
        )

    @property
    def count(self) -> int:
        """How many records the shard had."""
        return len(self.keys)

    def record(self, row: int) -> bytes | None:
        """A record; none unless it passes its checksums."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.extents[row][0])
                return next(read_records(stream))[1]
        except (OSError, DamagedRecord, StopIteration, IndexError):
            return None

    def fact(self, row: int) -> tuple[Any, ...] | None:
        """A row of facts."""
        return None if self.facts is None else tuple(column[row].as_py() for column in self.facts.columns)


def find_extents(job: Job) -> list[tuple[int, int]]:
    """Where the records lie: what the index says, or else those before the first that is damaged."""
    if job.is_good(job.folder.index(job.shard)):
        return [(offset, size) for offset, size in read_index(job.folder.index(job.shard)).tolist()]
    return scan_extents(job.folder.shard(job.shard))


def scan_extents(shard: Path) -> list[tuple[int, int]]:
    """Offset and size of the records of a shard that lie before the first damage."""
    extents: list[tuple[int, int]] = []
    try:
        with shard.open("rb") as stream:
            for offset, record in read_records(stream):
                extents.append((offset, len(record) + FRAMING_BYTES))
    except (OSError, DamagedRecord):
        pass
    return extents
