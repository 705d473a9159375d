"""Writes one shard from its refs: process ahead, frame in the order of the key hash, account; then its receipt.

Everything a shard leaves behind gets its final name only when it is whole, and is a function of its refs alone: a
retry, or a twin on another worker, writes the same bytes.
"""

import dataclasses
import hashlib
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.config import BuildConfig
from pipelines.decoders import DecoderPool
from pipelines.facts import FactsWriter
from pipelines.layout import BuildFolder, save_receipt
from pipelines.plan import Plan, order_hash
from pipelines.process import Made, Outcome, Refused, Task
from pipelines.reasons import LISTED_TWICE, Reason
from pipelines.values import Account, Fault, InputRef, PlannedShard, Receipt, Reject
from shards.files import open_atomically, write_atomically
from shards.records import RecordWriter, WrittenShard

# A group of tasks for a decoder: enough to make handing over cheap, few enough bytes to keep memory flat.
GROUP_TASKS, GROUP_BYTES = 32, 4_000_000

Watcher = Callable[[int, int], None]  # told (inputs done, of these rejected)


def write_shard(
    shard: PlannedShard,
    refs: Iterable[InputRef],
    *,
    plan: Plan,
    config: BuildConfig,
    decoders: DecoderPool,
    watch: Watcher,
) -> Receipt:
    """Writes the shard with its index, facts and rejects; returns its receipt, which is stored last."""
    folder = BuildFolder(Path(config.output))
    ordered = sorted(refs, key=lambda ref: (order_hash(ref.key), ref.key, ref.location.path, ref.location.offset))
    tally, facts = Tally(config), FactsWriter(config, plan.content)
    with open_atomically(folder.shard(shard)) as stream, open_atomically(folder.index(shard)) as index:
        writer = RecordWriter(stream, index)
        for ref, outcome in process_ahead(ordered, plan.label_ids, decoders):
            if isinstance(outcome, Made):
                writer.write(outcome.record)
                facts.add(outcome.facts, ref_digest(ref))
            tally.add(ref, outcome)
            watch(tally.listed, len(tally.rejects))
    facts.save(folder.facts(shard))
    save_rejects(tally.rejects, folder.rejects(shard))
    receipt = tally.receipt(shard, writer.finish(), inputs=fingerprint_inputs(ordered))
    save_receipt(receipt, folder.receipt(shard))
    return receipt


def process_ahead(
    refs: Iterable[InputRef], label_ids: Mapping[str, int], decoders: DecoderPool
) -> Iterator[tuple[InputRef, Outcome]]:
    """Processes refs and yields them with their outcomes, in the order of the refs, a bounded number ahead."""
    running: deque[tuple[list[InputRef], Future[list[Outcome]]]] = deque()
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


def _outcomes(group: list[InputRef], future: "Future[list[Outcome]]") -> Iterator[tuple[InputRef, Outcome]]:
    return zip(group, future.result(), strict=True)


def mark_duplicates(refs: Iterable[InputRef]) -> Iterator[InputRef]:
    """Gives a fault to every ref whose key was there before; equal keys are neighbours in the shard's order."""
    first = None
    for ref in refs:
        if first is None or ref.key != first.key:
            first = ref
            yield ref
        elif ref.location == first.location and ref.fault == first.fault:
            yield ref._replace(fault=_LISTED_TWICE)
        else:
            yield ref if ref.fault else ref._replace(fault=_DUPLICATE)


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
    """What happened to the inputs of one shard."""

    config: BuildConfig
    rejects: list[Reject] = field(default_factory=list)
    duplicates: list[Reject] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    sides: set[tuple[int, int]] = field(default_factory=set)
    totals: Counter[str] = field(default_factory=Counter)
    sources: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))

    @property
    def listed(self) -> int:
        """Inputs so far."""
        return self.totals["listed"]

    def add(self, ref: InputRef, outcome: Outcome) -> None:
        """Counts one input."""
        self.totals["listed"] += 1
        twice = isinstance(outcome, Refused) and outcome.reason == LISTED_TWICE
        made = isinstance(outcome, Made)
        self.sources[source_name(ref, self.config)] += Account(1, int(made), int(not made and not twice), int(twice))
        if isinstance(outcome, Made):
            self._add_made(ref, outcome)
        else:
            (self.duplicates if twice else self.rejects).append(make_reject(ref, outcome, self.config))

    def _add_made(self, ref: InputRef, made: Made) -> None:
        self.labels.update(ref.labels)
        self.formats.update([made.format] if made.format else [])
        self.sides.add(made.sides)
        self.totals.update(
            boxes_kept=made.boxes_kept, boxes_dropped=made.boxes_dropped, kept_truncated=int(made.truncated)
        )

    def receipt(self, shard: PlannedShard, written: WrittenShard, *, inputs: str) -> Receipt:
        """The receipt of the finished shard."""
        heights, widths = zip(*self.sides, strict=True) if self.sides else ((0,), (0,))
        return Receipt(
            **dataclasses.asdict(written),
            split=shard.split,
            index=shard.index,
            listed=self.listed,
            inputs=inputs,
            labels=dict(sorted(self.labels.items())),
            rejected=dict(sorted(Counter(reject.reason for reject in self.rejects).items())),
            formats=dict(sorted(self.formats.items())),
            smallest=(min(heights), min(widths)),
            largest=(max(heights), max(widths)),
            duplicates=len(self.duplicates),
            boxes_kept=self.totals["boxes_kept"],
            boxes_dropped=self.totals["boxes_dropped"],
            kept_truncated=self.totals["kept_truncated"],
            sources=dict(sorted(self.sources.items())),
        )


def source_name(ref: InputRef, config: BuildConfig) -> str:
    """What the accounts call a ref's source."""
    return config.all_sources[ref.source].name or "default"


def make_reject(ref: InputRef, refused: Refused, config: BuildConfig) -> Reject:
    """The line that the rejects file gets."""
    return Reject(
        key=ref.key,
        source=source_name(ref, config),
        location=describe_location(ref, config),
        reason=refused.reason,
        message=refused.message,
        bytes=refused.size or ref.location.size,
        sha256=refused.sha256,
    )


def describe_location(ref: InputRef, config: BuildConfig) -> str:
    """Where an input lies, relative to its source, so that the same inputs elsewhere give the same line."""
    location, root = ref.location, config.all_sources[ref.source].path
    path = location.path.removeprefix(f"{root.rstrip('/')}/") if location.path != root else Path(root).name
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if location.is_whole_file else f"{text}@{location.offset}+{location.size}"


def save_rejects(rejects: Sequence[Reject], path: Path) -> None:
    """Writes the rejects as JSON lines; a shard without any leaves no file."""
    if rejects:
        lines = (json.dumps(dataclasses.asdict(reject), ensure_ascii=False) + "\n" for reject in rejects)
        write_atomically(path, "".join(lines).encode("utf-8", "backslashreplace"))


def ref_digest(ref: InputRef) -> int:
    """A 64-bit digest of everything known of an input before opening it, except where it is."""
    known = (ref.key, ref.location.size, ref.location.form, *ref[2:8], ref.fault)
    return int.from_bytes(hashlib.blake2b(json.dumps(known).encode(), digest_size=8).digest(), "little")


def fingerprint_inputs(ordered: Iterable[InputRef]) -> str:
    """The digests of all inputs of a shard, as one."""
    digest = hashlib.sha256()
    for ref in ordered:
        digest.update(ref_digest(ref).to_bytes(8, "little"))
    return digest.hexdigest()
