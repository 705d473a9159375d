"""Writes one shard from its refs: read ahead, process, encode and frame in the order of the key hash; then its receipt.

Everything a shard leaves behind gets its final name only when it is whole, and is a function of its refs alone: a
retry, or a twin on another worker, writes the same bytes.
"""

import dataclasses
import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.config import BuildConfig
from pipelines.facts import FactsWriter
from pipelines.images import Picture, process_image
from pipelines.layout import BuildFolder, save_receipt
from pipelines.plan import order_hash
from pipelines.reasons import Reason, RejectedImage
from pipelines.values import Fault, ImageRef, PlannedShard, Receipt, Reject
from shards.example import Value, encode_example
from shards.files import open_atomically, write_atomically
from shards.records import RecordWriter, WrittenShard

# A task for a thread: enough images to make handing over cheap, few enough bytes to keep memory flat.
CHUNK_IMAGES, CHUNK_BYTES = 16, 4_000_000


@dataclass(frozen=True, slots=True)
class Example:
    """An input that became a record."""

    ref: ImageRef
    picture: Picture
    record: bytes


Outcome = Example | Reject
Watcher = Callable[[int, int], None]  # told (images done, of these rejected)


@dataclass(frozen=True)
class Threads:
    """The pool that processes images ahead of the writer, and its size."""

    executor: Executor
    count: int


def write_shard(
    shard: PlannedShard,
    refs: Iterable[ImageRef],
    *,
    labels: Sequence[str],
    config: BuildConfig,
    threads: Threads,
    watch: Watcher,
) -> Receipt:
    """Writes the shard with its index, facts and rejects; returns its receipt, which is stored last."""
    folder = BuildFolder(Path(config.output))
    ordered = sorted(refs, key=lambda ref: (order_hash(ref.key), ref.key, ref.location))
    outcomes = process_ahead(ordered, config, {label: number for number, label in enumerate(labels)}, threads=threads)
    tally, facts = Tally(), FactsWriter(config.source.columns)
    with open_atomically(folder.shard(shard)) as stream, open_atomically(folder.index(shard)) as index:
        writer = RecordWriter(stream, index)
        for outcome in outcomes:
            if isinstance(outcome, Example):
                writer.write(outcome.record)
                facts.add(outcome.ref, outcome.picture)
            tally.add(outcome)
            watch(tally.read, len(tally.rejects))
    facts.save(folder.facts(shard))
    save_rejects(tally.rejects, folder.rejects(shard))
    receipt = tally.receipt(shard, writer.finish(), inputs=fingerprint_inputs(ordered))
    save_receipt(receipt, folder.receipt(shard))
    return receipt


def process_ahead(
    refs: Sequence[ImageRef], config: BuildConfig, label_ids: Mapping[str, int], *, threads: Threads
) -> Iterator[Outcome]:
    """Processes refs in threads and yields the outcomes in the order of the refs, a bounded number ahead."""

    def process_chunk(chunk: list[ImageRef]) -> list[Outcome]:
        return [process_ref(ref, config, label_ids) for ref in chunk]

    running: deque[Future[list[Outcome]]] = deque()
    for chunk in chunks(mark_duplicates(refs)):
        running.append(threads.executor.submit(process_chunk, chunk))
        if len(running) > 2 * threads.count:
            yield from running.popleft().result()
    while running:
        yield from running.popleft().result()


def mark_duplicates(refs: Iterable[ImageRef]) -> Iterator[ImageRef]:
    """Gives a fault to every ref whose key was there before; equal keys are neighbours in the shard's order."""
    previous = None
    for ref in refs:
        yield ref._replace(fault=_DUPLICATE) if ref.key == previous and not ref.fault else ref
        previous = ref.key


_DUPLICATE = Fault(Reason.DUPLICATE_KEY, "another input has the same key; give each row an id of its own")


def chunks(refs: Iterable[ImageRef]) -> Iterator[list[ImageRef]]:
    """Groups refs into tasks, bounded in number and in bytes."""
    chunk: list[ImageRef] = []
    size = 0
    for ref in refs:
        chunk.append(ref)
        size += ref.size
        if len(chunk) >= CHUNK_IMAGES or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def process_ref(ref: ImageRef, config: BuildConfig, label_ids: Mapping[str, int]) -> Outcome:
    """Turns one input into a record, or into a reject with its reason."""
    data = b""
    try:
        if ref.fault:
            raise RejectedImage(Reason(ref.fault.reason), ref.fault.message)
        data = read_input(ref)
        picture = process_image(data, config.image)
    except RejectedImage as reject:
        digest = hashlib.sha256(data).hexdigest() if data else ""
        return Reject(ref.key, config.source.path, reject.reason, reject.message, digest)
    return Example(ref, picture, encode_example(example_features(ref, picture, label_ids[ref.label], config)))


def read_input(ref: ImageRef) -> bytes:
    """The bytes of an input."""
    try:
        with open(ref.location, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise RejectedImage(Reason.UNREADABLE, f"{error.strerror}") from error


def example_features(ref: ImageRef, picture: Picture, label: int, config: BuildConfig) -> dict[str, Value]:
    """The features of one record; `commit.FEATURES` describes them."""
    extras: dict[str, Value] = {
        name: value.encode() if isinstance(value, str) else [value]
        for name, value in zip(config.source.columns, ref.columns, strict=True)
    }
    return extras | {
        "image": picture.data,
        "label": [label],
        "label_name": ref.label.encode(),
        "key": ref.key.encode(),
        "height": [picture.height],
        "width": [picture.width],
    }


@dataclass
class Tally:
    """What happened to the inputs of one shard."""

    read: int = 0
    rejects: list[Reject] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    sides: set[tuple[int, int]] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        """Counts one input."""
        self.read += 1
        if isinstance(outcome, Reject):
            self.rejects.append(outcome)
        else:
            self.labels[outcome.ref.label] += 1
            self.formats[outcome.picture.format] += 1
            self.sides.add((outcome.picture.height, outcome.picture.width))

    def receipt(self, shard: PlannedShard, written: WrittenShard, *, inputs: str) -> Receipt:
        """The receipt of the finished shard."""
        heights, widths = zip(*self.sides, strict=True) if self.sides else ((0,), (0,))
        return Receipt(
            **dataclasses.asdict(written),
            split=shard.split,
            index=shard.index,
            read=self.read,
            inputs=inputs,
            labels=dict(sorted(self.labels.items())),
            rejected=dict(sorted(Counter(reject.reason for reject in self.rejects).items())),
            formats=dict(sorted(self.formats.items())),
            smallest=(min(heights), min(widths)),
            largest=(max(heights), max(widths)),
        )


def save_rejects(rejects: Sequence[Reject], path: Path) -> None:
    """Writes the rejects as JSON lines; a shard without any leaves no file."""
    if rejects:
        lines = (json.dumps(dataclasses.asdict(reject), ensure_ascii=False) + "\n" for reject in rejects)
        write_atomically(path, "".join(lines).encode("utf-8", "backslashreplace"))


def fingerprint_inputs(ordered: Iterable[ImageRef]) -> str:
    """A hash of everything known of a shard's inputs before opening them, except where they are."""
    digest = hashlib.sha256()
    for ref in ordered:
        line = (ref.key, ref.label, ref.size, ref.split, ref.group, ref.columns, ref.fault)
        digest.update(json.dumps(line, ensure_ascii=True).encode())
    return digest.hexdigest()
