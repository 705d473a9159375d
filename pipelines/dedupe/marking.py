"""The Beam side of `dedupe`: every input is looked at once, those that share a mark meet, and all learn the verdict.

What travels is small: references, digests of bytes, and looks of 32 bytes. Of inputs that have no duplicate nothing is
kept; those that have one are judged together in one place, which takes some 1,400 bytes for each, and the verdicts go
to every worker, which takes 500.
"""

import hashlib
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

import pipelines.inputs.coders  # noqa: F401  (registers how refs travel)
from pipelines.config import BuildConfig
from pipelines.decoding.decoders import DecoderPool
from pipelines.decoding.glance import Glance, Seen
from pipelines.dedupe.bands import look_alikes, look_bands
from pipelines.dedupe.duplicates import DIGEST_BYTES, Member, Piece, find_pieces
from pipelines.dedupe.sides import Verdicts, decide, list_clusters
from pipelines.pictures.forms import row_length
from pipelines.pictures.perceptual import LOOK_BYTES
from pipelines.pictures.process import read_input
from pipelines.planning.splits import unit_of
from pipelines.reasons import RejectedImage
from pipelines.values import RECORD, InputRef
from pipelines.workspace.layout import BuildFolder
from pipelines.workspace.lock import UNANNOUNCED, Run
from pipelines.writing.write import GROUP_BYTES, GROUP_TASKS
from shards.errors import UsageError
from shards.files import naming_after, write_atomically

Candidate = tuple[InputRef, bool]  # a ref, and whether it may have duplicates
_REPORT_SECONDS = 0.5
Looked = tuple[InputRef, bytes]  # a ref and the digest of its bytes, empty if they were not read


@dataclass(eq=False)
class MarkDuplicates(beam.PTransform):
    """Gives a fault to every duplicate that does not stay, and one place to all that belong together.

    `decoders` is how many inputs one worker looks at at once; the clusters are listed in a file at `path`.
    """

    config: BuildConfig
    decoders: int
    path: Path | None = None
    run: Run = UNANNOUNCED

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[InputRef]:
        """Refs -> the same refs."""
        config = self.config
        looked = (
            refs
            | "FindCandidates" >> FindCandidates(config)  # (InputRef, is it one)
            | "Spread" >> beam.Reshuffle()  # (InputRef, is it one)
            | "Look" >> beam.ParDo(LookAtInputs(config, self.decoders)).with_output_types(Looked)
        )
        pieces = looked | "FindPieces" >> FindPieces(config)
        once = refs.pipeline | "Once" >> beam.Create([None])
        involved = once | "Groups" >> beam.Map(groups_of, AsList(pieces))  # {group}
        seen = looked | "Refs" >> beam.Keys()  # InputRef
        bound = (
            seen
            | "Bound" >> beam.FlatMap(bound_group, config, AsSingleton(involved))  # (group, split)
            | "OnceEach" >> beam.Distinct()  # (group, split)
        )
        verdicts = once | "Decide" >> beam.Map(_decide, AsList(pieces), AsList(bound), config)  # Verdicts
        told = AsSingleton(verdicts)
        if self.path:
            _ = once | "List" >> beam.Map(_list_clusters, AsList(pieces), told, self.path, self.run)
        return seen | "Mark" >> beam.Map(mark, told, config).with_output_types(InputRef)


def _decide(_: None, pieces: list[Piece], bound: list[tuple[str, str]], config: BuildConfig) -> Verdicts:
    return decide(pieces, bound, config.dedupe)


def _list_clusters(_: None, pieces: list[Piece], verdicts: Verdicts, path: Path, run: Run) -> None:
    with naming_after(run.check):
        write_atomically(path, "".join(list_clusters(pieces, verdicts)).encode())


def groups_of(_: None, pieces: list[Piece]) -> frozenset[str]:
    """The groups of inputs that have duplicates."""
    return frozenset(member.group for piece in pieces for member in piece.members)


@dataclass(eq=False)
class FindCandidates(beam.PTransform):
    """Tells which refs may have duplicates: all that can be used, or only those that share their size with another."""

    config: BuildConfig

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[Candidate]:
        """Refs -> the same refs, and whether to look at them."""
        if self.config.dedupe.find == "near":
            return refs | "Pictures" >> beam.Map(find_picture).with_output_types(Candidate)
        return (
            refs
            | "KeyBySize" >> beam.Map(lambda ref: (size_of(ref), ref)).with_output_types(tuple[str, InputRef])
            | "GroupBySize" >> beam.GroupByKey()  # (size, [InputRef])
            | "Shared" >> beam.FlatMapTuple(find_shared).with_output_types(Candidate)
        )


def is_usable(ref: InputRef) -> bool:
    """Whether a ref stands for an input that may become a record."""
    return not (ref.fault or (ref.before and ref.before.gone))


def find_picture(ref: InputRef) -> Candidate:
    """A ref as a candidate; refuses rows of features, which have no looks."""
    if length := row_length(ref.location.form):
        raise UsageError(f"dedupe near compares pictures, the inputs are rows of {length} features; set it to exact")
    return ref, is_usable(ref)


def size_of(ref: InputRef) -> str:
    """What inputs of the same bytes have in common before they are read."""
    location = ref.location
    return f"{location.unpacked or location.size} {location.form}" if is_usable(ref) else f"none {ref.key}"


def find_shared(size: str, refs: Iterable[InputRef]) -> Iterator[Candidate]:
    """Refs of one size as candidates if there are several; holds no more than one of them."""
    several = iter(refs)
    first = next(several)
    second = next(several, None)
    yield first, second is not None and is_usable(first)
    if second is not None:
        yield second, is_usable(second)
        yield from ((ref, is_usable(ref)) for ref in several)


class LookAtInputs(beam.DoFn):
    """Looks at inputs in decoder processes, a bounded number ahead, unless the dataset knows what they look like."""

    def __init__(self, config: BuildConfig, decoders: int) -> None:
        """`decoders` is how many inputs one worker looks at at once."""
        self._config, self._count = config, decoders
        self._decode = config.dedupe.find == "near"

    def setup(self) -> None:
        """Starts the decoders."""
        self._decoders = DecoderPool(self._config, self._count)
        self._progress = BuildFolder(Path(self._config.output)).looking(uuid.uuid4().hex)
        self._done, self._told = 0, time.monotonic()

    def start_bundle(self) -> None:
        """Nothing is under way."""
        self._group: list[InputRef] = []
        self._running: deque[tuple[list[InputRef], Future[list[Seen]]]] = deque()

    def process(self, candidate: Candidate) -> Iterator[Looked]:
        """A ref -> the refs that have been looked at meanwhile."""
        ref, wanted = candidate
        if known := recall(ref, decode=self._decode) if wanted else ref:
            yield known, b""
            return
        self._group.append(ref)
        if len(self._group) >= GROUP_TASKS or sum(each.location.size for each in self._group) >= GROUP_BYTES:
            self._submit()
            if len(self._running) > 2 * self._count:
                yield from self._next()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """The rest of them."""
        self._submit()
        while self._running:
            yield from (WindowedValue(looked, 0, [GlobalWindow()]) for looked in self._next())

    def teardown(self) -> None:
        """Lets the decoders go."""
        self._decoders.close()

    def _submit(self) -> None:
        jobs = [Glance(ref, self._decode) for ref in self._group]
        self._running.append((self._group, self._decoders.submit(jobs)))
        self._group = []

    def _next(self) -> Iterator[Looked]:
        group, answers = self._running.popleft()
        self._report(len(group))
        for ref, seen in zip(group, answers.result(), strict=True):
            content = int.from_bytes(seen.sha256[:8], "little")
            yield ref._replace(content=content, look=seen.look), seen.sha256[:DIGEST_BYTES]

    def _report(self, count: int) -> None:
        """Leaves the worker's count where the driver looks for it, if there is such a place."""
        self._done += count
        if time.monotonic() - self._told > _REPORT_SECONDS and self._progress.parent.is_dir():
            self._told = time.monotonic()
            self._progress.write_bytes(b"%d" % self._done)


def recall(ref: InputRef, *, decode: bool) -> InputRef | None:
    """The ref with what the dataset knows of it, if it has not changed and that is enough, or all there is."""
    before = ref.before
    if ref.is_carried:
        return ref
    if before and before.same and before.content and (before.look or not decode):
        return ref._replace(content=before.content, look=before.look)
    return None


@dataclass(eq=False)
class FindPieces(beam.PTransform):
    """Brings together what shares a mark or, if asked for, has looks close to each other."""

    config: BuildConfig

    def expand(self, looked: beam.PCollection[Looked]) -> beam.PCollection[Any]:
        """Looked -> pieces."""
        members = looked | "Members" >> beam.FlatMap(key_by_mark, self.config).with_output_types(tuple[bytes, Any])
        if self.config.dedupe.find == "near":
            partners = members | "FindPartners" >> FindPartners(self.config.dedupe.distance)
            members = (members, partners) | "WithPartners" >> beam.Flatten()
        read = partial(read_digest, config=self.config)
        return (
            members
            | "GroupByMark" >> beam.GroupByKey()  # (mark, [Member or mark])
            | "Pieces" >> beam.FlatMapTuple(lambda mark, found: find_pieces(mark, found, read))  # Piece
        )


@dataclass(eq=False)
class FindPartners(beam.PTransform):
    """Finds looks that are close: a join by bands, never all pairs."""

    limit: int

    def expand(self, members: beam.PCollection[tuple[bytes, Any]]) -> beam.PCollection[tuple[bytes, Any]]:
        """(mark, member) -> (mark, close mark), each pair in both directions."""
        limit = self.limit
        return (
            members
            | "Looks" >> beam.FlatMapTuple(lambda mark, member: [mark] if member.look else [])  # look
            | "KeyByBand" >> beam.FlatMap(key_by_band, limit).with_output_types(tuple[bytes, bytes])
            | "GroupByBand" >> beam.GroupByKey()  # (band, [look])
            | "Bucket" >> beam.Values()  # [look]
            | "Compare" >> beam.FlatMap(pair_up, limit).with_output_types(tuple[bytes, Any])
        )


def key_by_mark(looked: Looked, config: BuildConfig) -> Iterator[tuple[bytes, Member]]:
    """An input that could be read, by its mark."""
    ref, digest = looked
    if ref.content:
        member = as_member(ref, digest, config)
        yield member.mark, member


def as_member(ref: InputRef, digest: bytes, config: BuildConfig) -> Member:
    """What duplicates need to know of a ref."""
    return Member(
        is_new=not (ref.before and ref.before.same and not ref.before.reason),
        source=ref.source,
        key=ref.key,
        location=ref.location,
        unit=unit_of(ref),
        group=ref.group,
        side=bound_side(ref, config),
        answer=tuple(sorted(ref.labels)) or ref.target,
        content=ref.content,
        digest=digest,
        look=ref.look if len(ref.look) == LOOK_BYTES else b"",
    )


def bound_side(ref: InputRef, config: BuildConfig) -> str:
    """The split that a ref cannot leave: the source gives it, or the dataset has it there."""
    if ref.split and config.splits.use_given:
        return ref.split
    return ref.before.split if ref.before and not ref.before.reason else ""


def bound_group(ref: InputRef, config: BuildConfig, involved: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The group of a ref with the side that binds it, if duplicates may tie that group to others."""
    if ref.group and ref.group in involved and is_usable(ref) and (side := bound_side(ref, config)):
        yield ref.group, side


def key_by_band(look: bytes, distance: int) -> Iterator[tuple[bytes, bytes]]:
    """A look in each of its buckets."""
    return ((band, look) for band in look_bands(look, distance=distance))


def pair_up(looks: Iterable[bytes], distance: int) -> Iterator[tuple[bytes, bytes]]:
    """The close pairs of a bucket, in both directions."""
    for one, other in look_alikes(looks, distance=distance):
        yield from ((one, other), (other, one))


def read_digest(member: Member, config: BuildConfig) -> bytes:
    """The digest of an input's bytes; empty if it cannot be read."""
    if member.location.coding == RECORD:
        return b""
    try:
        return hashlib.sha256(read_input(member.location, config.image)).digest()[:DIGEST_BYTES]
    except RejectedImage:
        return b""


def mark(ref: InputRef, verdicts: Verdicts, config: BuildConfig) -> InputRef:
    """The ref with its verdict, or the place of its group."""
    verdict = verdicts.members.get((ref.key, ref.location.path, ref.location.offset))
    place = verdict.place if verdict else verdicts.groups.get(ref.group)
    if place is None or not is_usable(ref):
        return ref
    dealt = "" if bound_side(ref, config) else place.side
    return ref._replace(unit=place.unit, dealt=dealt, fault=verdict.fault if verdict else None)
