"""Makes damaged shards again: finds their inputs among all that the sources list, and writes each shard once more."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.config import BuildConfig, SplitsConfig
from pipelines.decoding.decoders import DecoderPool
from pipelines.dedupe.marking import MarkDuplicates
from pipelines.mending.remains import Job, Note, mend_shard, read_rejects
from pipelines.pipeline import ListInputs, report_to
from pipelines.planning.dealing import DealSplits
from pipelines.planning.listing import order_prefix
from pipelines.planning.plan import Plan, Rebuilt
from pipelines.runner import decoders_per_worker
from pipelines.sources import check_sources
from pipelines.values import Content, InputRef, PlannedShard, Receipt
from pipelines.versions.match import MatchInputs
from pipelines.workspace.failures import explain_failures
from pipelines.workspace.layout import BuildFolder, link_file, load_plan, save_plan, save_receipt
from pipelines.workspace.lock import Run
from pipelines.workspace.progress import show_progress
from pipelines.workspace.workers import noticing_dead_workers
from pipelines.writing.facts import RowWriter
from pipelines.writing.seen import KEY, REASON, SEEN_SCHEMA, read_seen, to_bytes, to_text
from shards.errors import ShardsmithError
from shards.example import decode_example
from shards.files import naming_after, write_atomically
from shards.manifest import Manifest
from shards.quiet import captured_stderr
from shards.records import DamagedRecord, read_records


def mend_shards(
    jobs: Sequence[Job],
    others: Sequence[PlannedShard],
    manifest: Manifest,
    config: BuildConfig,
    options: PipelineOptions,
) -> str:
    """Makes shards again in the config's output; returns why the sources could not be listed ("" if they were).

    `others` are shards whose inputs could be taken for those of the jobs.
    """
    try:
        check_sources(config)
        _mend(jobs, others, manifest, config, options=options, with_sources=True)
    except ShardsmithError as error:
        _mend(jobs, others, manifest, config, options=options, with_sources=False)  # from what is left of the shards
        return str(error)
    return ""


def _mend(
    jobs: Sequence[Job],
    others: Sequence[PlannedShard],
    manifest: Manifest,
    config: BuildConfig,
    *,
    options: PipelineOptions,
    with_sources: bool,
) -> None:
    folder = BuildFolder(Path(config.output))
    folder.prepare(anew=True)
    known = BuildFolder(folder.root / "known")
    known.prepare(anew=True)
    for job in jobs:
        folder.shard(job.shard).parent.mkdir(exist_ok=True)
        if not job.range:
            copy_inputs(job.folder, job.shard, known, is_good=job.knows_its_inputs)
    for shard in others:
        copy_inputs(jobs[0].folder, shard, known, is_good=jobs[0].folder.seen(shard).exists())
    save_plan(make_plan(jobs, manifest), folder.plan)
    with captured_stderr(folder.worker_log) as terminal, show_progress(folder, terminal):
        run_mend(config, jobs, known.root, options=options, with_sources=with_sources)


def make_plan(jobs: Sequence[Job], manifest: Manifest) -> Plan:
    """A plan of nothing but these shards, each in its own place."""
    first = manifest.features[0]
    content = Content(row_length=(first.length or 0) if first.name == "features" else 0)
    rebuilt = tuple(Rebuilt(job.shard, job.shard.index, job.entry.records) for job in jobs)
    return Plan(manifest.labels, dict.fromkeys(manifest.labels, 0), (), content=content, rebuilt=rebuilt)


def copy_inputs(folder: BuildFolder, shard: PlannedShard, known: BuildFolder, *, is_good: bool) -> None:
    """Leaves in another folder what the inputs of a shard are: as they were seen, or else the keys in its files."""
    if is_good:
        link_file(folder.seen(shard), known.seen(shard))
        keys = [to_text(key) for key in read_seen(known.seen(shard), (KEY,))[KEY].to_pylist()]
    else:
        inputs = sorted(read_keys(folder, shard), key=lambda each: order_prefix(each[0]))
        keys = [key for key, _ in inputs]
        save_inputs(inputs, known.seen(shard))
    hashes = [order_prefix(key) for key in keys] or [0]
    save_receipt(_stub(shard, len(keys), (min(hashes), max(hashes))), known.receipt(shard))


def read_keys(folder: BuildFolder, shard: PlannedShard) -> Iterator[tuple[str, str]]:
    """The keys of a shard's inputs, each with why it was rejected ("" if not), as far as records are good."""
    try:
        with folder.shard(shard).open("rb") as stream:
            for _, record in read_records(stream):
                key = decode_example(record)["key"][0]
                assert isinstance(key, bytes), "the manifest says so, and verify has looked"
                yield key.decode(), ""
    except (OSError, DamagedRecord, ValueError):
        pass
    for reject in read_rejects(folder.rejects(shard)):
        yield reject["key"], reject["reason"]


def save_inputs(inputs: Iterable[tuple[str, str]], path: Path) -> None:
    """Stores keys and reasons as rows of `state/seen`; nothing else is known of these inputs."""
    unknown = {column.name: 0 if pa.types.is_integer(column.type) else None for column in SEEN_SCHEMA}
    rows = RowWriter(SEEN_SCHEMA)
    for key, reason in inputs:
        rows.add(list((unknown | {KEY: to_bytes(key), REASON: reason}).values()))
    rows.save(path)


def _stub(shard: PlannedShard, listed: int, hashes: tuple[int, int]) -> Receipt:
    return Receipt(
        shard.split, shard.index, listed, records=0, bytes=0, sha256="", index_sha256="", inputs="", labels={},
        rejected={}, formats={}, smallest=(0, 0), largest=(0, 0), hashes=hashes,
    )  # fmt: skip


def run_mend(
    config: BuildConfig, jobs: Sequence[Job], known: Path, *, options: PipelineOptions, with_sources: bool
) -> None:
    """Makes the shards; without sources it is as if all inputs were gone."""
    spool = str(BuildFolder(Path(config.output)).spool)
    nothing = beam.Create([], reshuffle=False).with_output_types(InputRef)
    places = {(job.shard.split, job.shard.index): job.shard.number for job in jobs}
    unsure, decoders = [job for job in jobs if job.range], decoders_per_worker(options)
    run = Run.find(Path(config.output))
    with explain_failures(config), noticing_dead_workers(run), beam.Pipeline(options=options) as pipeline:
        refs = pipeline | "ListInputs" >> (ListInputs(config, spool) if with_sources else nothing)  # InputRef
        refs = refs | "MatchInputs" >> MatchInputs(config, known)  # InputRef
        if needs_duplicates(jobs, config):
            refs = refs | "MarkDuplicates" >> MarkDuplicates(config, decoders)  # InputRef
        if unsure:
            refs = refs | "DealSplits" >> DealSplits(config)  # InputRef
        _ = (
            refs
            | "KeyByShard"
            >> beam.FlatMap(key_by_job, places, unsure, config.splits).with_output_types(tuple[int, InputRef])
            | "GroupByShard" >> beam.GroupByKey()  # (shard number, [InputRef])
            | "MendShard" >> beam.ParDo(MendShard(config, jobs, decoders))  # nothing
        )


def needs_duplicates(jobs: Iterable[Job], config: BuildConfig) -> bool:
    """Whether it must be found out once more which inputs are duplicates of others."""
    return config.dedupe.find != "none" and not all(job.is_partial for job in jobs)


def key_by_job(
    ref: InputRef, places: Mapping[tuple[str, int], int], unsure: Sequence[Job], splits: SplitsConfig
) -> Iterator[tuple[int, InputRef]]:
    """A ref with the number of the shard that it is an input of, if that is made again.

    How a stratified split was dealt cannot be found out from what is left: whoever no other shard has is its own.
    """
    if ref.before:
        place = ref.before.split, ref.before.shard
        yield from [(places[place], ref)] if place in places and not ref.before.added else []
    else:
        prefix = order_prefix(ref.key)
        for job in unsure:
            if job.could_hold(job.shard.split if splits.stratify else ref.dealt, prefix):
                yield job.shard.number, ref


class MendShard(beam.DoFn):
    """Makes one shard per element; a DoFn because the decoders live as long as the worker."""

    def __init__(self, config: BuildConfig, jobs: Sequence[Job], decoders: int) -> None:
        """`decoders` is how many inputs one worker processes at once."""
        self._config, self._jobs, self._count = config, jobs, decoders
        self._check = Run.find(Path(config.output)).check

    def setup(self) -> None:
        """Starts the decoders."""
        self._decoders = DecoderPool(self._config, self._count)

    def teardown(self) -> None:
        """Lets the decoders go."""
        self._decoders.close()

    def process(self, element: tuple[int, Iterable[InputRef]]) -> None:
        """(number, refs) -> the shard's files and a note in the output."""
        number, refs = element
        job, folder = self._jobs[number], BuildFolder(Path(self._config.output))
        with naming_after(self._check):
            note = mend_shard(
                job,
                list(refs),
                plan=load_plan(folder.plan),
                config=self._config,
                decoders=self._decoders,
                watch=report_to(folder, job.shard),
            )
            write_atomically(_note_path(folder, job.shard), json.dumps(dataclasses.asdict(note)).encode())
        folder.progress(job.shard).write_bytes(b"%d 0" % job.entry.records)


def load_note(folder: BuildFolder, shard: PlannedShard) -> Note | None:
    """What was told of a shard that was made again; none if no input of it was found."""
    path = _note_path(folder, shard)
    return Note(**json.loads(path.read_text())) if path.exists() else None


def _note_path(folder: BuildFolder, shard: PlannedShard) -> Path:
    return folder.taken(shard)
