"""Writes one shard from its refs: process ahead, frame in the order of the key hash, account; then its receipt.

Everything a shard leaves behind gets its final name only when it is whole, and is a function of its refs alone: a
retry, or a twin on another worker, writes the same bytes.
"""

import dataclasses
import hashlib
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipelines.config import BuildConfig
from pipelines.pictures.process import Made, Outcome, Refused, Task
from pipelines.planning.listing import order_prefix, source_of
from pipelines.planning.plan import Plan
from pipelines.planning.splits import order_hash
from pipelines.reasons import DUPLICATES, LISTED_TWICE, Reason
from pipelines.values import Account, Fault, InputRef, PlannedShard, Receipt, Reject
from pipelines.workspace.layout import BuildFolder, save_receipt
from pipelines.writing.facts import RowWriter, facts_schema
from pipelines.writing.lost import check_still_there
from pipelines.writing.seen import SEEN_SCHEMA, Identities, describe_location, ref_digest, seen_row
from shards.files import open_atomically, write_atomically
from shards.records import RecordWriter, WrittenShard

# A group of tasks for a decoder: enough to make handing over cheap, small enough to keep every decoder busy.
GROUP_TASKS, GROUP_BYTES = 128, 1_000_000

Watcher = Callable[[int, int], None]  # told (inputs done, of these rejected)


class Pending(Protocol):
    """Outcomes that may not be there yet."""

    def result(self) -> list[Outcome]:
        """Waits for them."""


class Processor(Protocol):
    """Whoever turns tasks into outcomes, `count` groups at a time: decoders, or a donor of records before them."""

    count: int

    def submit(self, tasks: Sequence[Task], /) -> Pending:
        """Takes a group of tasks."""


def write_shard(
    shard: PlannedShard,
    refs: Iterable[InputRef],
    *,
    plan: Plan,
    config: BuildConfig,
    decoders: Processor,
    watch: Watcher,
) -> Receipt:
    """Writes the shard with its index, facts and rejects; returns its receipt, which is stored last."""
    folder = BuildFolder(Path(config.output))
    folder.receipt(shard).unlink(missing_ok=True)  # an interrupted run's: it may not vouch for other bytes
    ordered = sort_refs(refs)
    tally, identities = Tally(config), Identities(config)
    facts, seen = RowWriter(facts_schema(config, plan.content)), RowWriter(SEEN_SCHEMA)
    with open_atomically(folder.shard(shard)) as stream, open_atomically(folder.index(shard)) as index:
        writer = RecordWriter(stream, index)
        # What an input is does not depend on the others; that it is a duplicate of one is an outcome.
        for ref, (_, outcome) in zip(ordered, process_ahead(ordered, plan.label_ids, decoders), strict=True):
            if isinstance(outcome, Made):
                writer.write(outcome.record)
                facts.add(outcome.facts)
            elif outcome.data:
                save_quarantined(outcome, folder)
            elif outcome.reason == Reason.UNREADABLE:
                check_still_there(ref, config)
            seen.add(seen_row(ref, outcome, identities.of(ref), config))
            tally.add(ref, outcome)
            watch(tally.listed, len(tally.rejects) - tally.duplicates)
    facts.save(folder.facts(shard))
    seen.save(folder.seen(shard))
    save_rejects(tally.rejects, folder.rejects(shard))
    hashes = order_prefix(ordered[0].key), order_prefix(ordered[-1].key)
    ids = {label: plan.label_ids[label] for label in sorted(tally.labels)}
    receipt = dataclasses.replace(
        tally.receipt(shard, writer.finish()), inputs=fingerprint_inputs(ordered), hashes=hashes, label_ids=ids
    )
    save_receipt(receipt, folder.receipt(shard))
    return receipt


def sort_refs(refs: Iterable[InputRef]) -> list[InputRef]:
    """Refs in the order of their shard: by the hash of the key; equal keys are neighbours.

    The digest decides between rows that name the same bytes: who comes first may not depend on who listed first.
    """
    return sorted(refs, key=lambda ref: (order_hash(ref.key), ref.key, *_place(ref), ref.source, ref_digest(ref)))


def _place(ref: InputRef) -> tuple[str, int]:
    return ref.location.path, ref.location.offset


def process_ahead(
    refs: Iterable[InputRef], label_ids: Mapping[str, int], decoders: Processor
) -> Iterator[tuple[InputRef, Outcome]]:
    """Processes refs and yields them with their outcomes, in the order of the refs, a bounded number ahead."""
    running: deque[tuple[list[InputRef], Pending]] = deque()
    for group in group_refs(mark_duplicates(refs)):
        running.append((group, decoders.submit([make_task(ref, label_ids) for ref in group])))
        if len(running) > 2 * decoders.count:
            yield from _outcomes(*running.popleft())
    while running:
        yield from _outcomes(*running.popleft())


def make_task(ref: InputRef, label_ids: Mapping[str, int]) -> Task:
    """The task of a ref, with its labels in the order of their ids."""
    if ref.fault:
        return Task(ref, ())
    labels = sorted(ref.labels, key=label_ids.__getitem__)
    return Task(ref._replace(labels=tuple(labels)), tuple(label_ids[label] for label in labels))


def _outcomes(group: list[InputRef], pending: Pending) -> Iterator[tuple[InputRef, Outcome]]:
    return zip(group, pending.result(), strict=True)


def mark_duplicates(refs: Iterable[InputRef]) -> Iterator[InputRef]:
    """Gives a fault to every ref whose key was there before; equal keys are neighbours in the shard's order."""
    first = None
    for ref in refs:
        if first is None or ref.key != first.key:
            first = ref
            yield ref
        elif (ref[:_SAID], ref.fault) == (first[:_SAID], first.fault):
            yield ref._replace(fault=_LISTED_TWICE)
        else:
            yield ref if ref.fault else ref._replace(fault=_DUPLICATE)


_SAID = InputRef._fields.index("source")  # the fields before it are what the source says of the input
_LISTED_TWICE = Fault(LISTED_TWICE, "the same input is listed more than once; it is in the dataset once")
_DUPLICATE = Fault(Reason.DUPLICATE_KEY, "another input has the same key; give each row an id of its own")


def group_refs(refs: Iterable[InputRef]) -> Iterator[list[InputRef]]:
    """Groups refs, bounded in number and in bytes."""
    group: list[InputRef] = []
    size = 0
    for ref in refs:
        group.append(ref)
        size += ref.location.size
        if len(group) >= GROUP_TASKS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


@dataclass
class Tally:
    """What happened to the inputs of one shard; `rejects` holds a line for each that it did not take."""

    config: BuildConfig
    rejects: list[Reject] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    sides: set[tuple[int, int]] = field(default_factory=set)
    totals: Counter[str] = field(default_factory=Counter)
    sources: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))

    @property
    def listed(self) -> int:
        """Inputs so far."""
        return self.totals["listed"]

    @property
    def duplicates(self) -> int:
        """Inputs that were listed before."""
        return self.totals["duplicates"]

    def add(self, ref: InputRef, outcome: Outcome) -> None:
        """Counts one input."""
        made = isinstance(outcome, Made)
        twice = isinstance(outcome, Refused) and outcome.reason in DUPLICATES
        self.totals.update(listed=1, duplicates=int(twice))
        account = Account(1, int(made), int(not made and not twice), int(twice))
        self.sources[source_of(ref, self.config)] += account
        if isinstance(outcome, Made):
            self._add_made(ref, outcome)
        else:
            self.rejects.append(make_reject(ref, outcome, self.config))

    def _add_made(self, ref: InputRef, made: Made) -> None:
        self.labels.update(ref.labels)
        self.formats.update([made.format] if made.format else [])
        self.sides.add(made.sides)
        self.totals.update(
            boxes_kept=made.boxes_kept, boxes_dropped=made.boxes_dropped, kept_truncated=int(made.truncated)
        )

    def receipt(self, shard: PlannedShard, written: WrittenShard) -> Receipt:
        """The receipt of the finished shard, as far as counting tells."""
        reasons = Counter(reject.reason for reject in self.rejects if reject.reason not in DUPLICATES)
        heights, widths = zip(*self.sides, strict=True) if self.sides else ((0,), (0,))
        return Receipt(
            **dataclasses.asdict(written),
            split=shard.split,
            index=shard.index,
            listed=self.listed,
            inputs="",
            labels=dict(sorted(self.labels.items())),
            rejected=dict(sorted(reasons.items())),
            formats=dict(sorted(self.formats.items())),
            smallest=(min(heights), min(widths)),
            largest=(max(heights), max(widths)),
            duplicates=self.duplicates,
            boxes_kept=self.totals["boxes_kept"],
            boxes_dropped=self.totals["boxes_dropped"],
            kept_truncated=self.totals["kept_truncated"],
            sources=dict(sorted(self.sources.items())),
        )


def make_reject(ref: InputRef, refused: Refused, config: BuildConfig) -> Reject:
    """The line that the rejects file gets."""
    return Reject(
        key=ref.key,
        source=source_of(ref, config),
        location=refused.location or describe_location(ref, config),
        reason=refused.reason,
        message=refused.message,
        bytes=refused.size or ref.location.size,
        sha256=refused.sha256,
    )


def save_rejects(rejects: Sequence[Reject], path: Path) -> None:
    """Writes the rejects as JSON lines; a shard without any leaves no file."""
    if not rejects:
        path.unlink(missing_ok=True)  # an interrupted run's
    else:
        lines = (json.dumps(dataclasses.asdict(reject), ensure_ascii=False) + "\n" for reject in rejects)
        write_atomically(path, "".join(lines).encode("utf-8", "backslashreplace"))


def save_quarantined(refused: Refused, folder: BuildFolder) -> None:
    """Keeps the bytes of a rejected input, once per content."""
    path = folder.quarantine(refused.sha256)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, refused.data)


def fingerprint_inputs(ordered: Iterable[InputRef]) -> str:
    """The digests of all inputs of a shard, as one."""
    digest = hashlib.sha256()
    for ref in ordered:
        digest.update(ref_digest(ref).to_bytes(8, "little"))
    return digest.hexdigest()
