"""Ends a build: accounting, error budget, analysis, descriptions, and the manifest last of all."""

import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.analysis.analyst import Analysis, Analyzer
from pipelines.config import BuildConfig
from pipelines.finish.accounts import check_accounting, check_budget, count_up
from pipelines.finish.leak_check import check_leaks
from pipelines.finish.report import render_report
from pipelines.finish.schema import feature_list, schema_text, tfds_files
from pipelines.finish.shuffle import measure_shuffle
from pipelines.finish.spare import write_manifest, write_spare
from pipelines.planning.plan import Plan
from pipelines.recipe import Recipe, compare
from pipelines.values import PlannedShard, Receipt
from pipelines.workspace.layout import BuildFolder, load_receipts
from shards.errors import ShardsmithError
from shards.files import hash_file, is_temporary, write_atomically
from shards.local import LOCAL, write_local
from shards.manifest import (
    FORMAT_VERSION,
    MANIFEST_COPY,
    SPARE,
    Counts,
    FileEntry,
    HistoryEntry,
    Manifest,
    ShardEntry,
    SplitEntry,
)


@dataclass(frozen=True)
class Origin:
    """How a version comes about: by which command, and from which dataset it goes on."""

    command: str = "build"
    before: Manifest | None = None
    root: Path | None = None  # where the version before lies
    recipe: Recipe | None = None  # that the records were made by, if it is not the config's

    @property
    def version(self) -> int:
        """The number of the version to be made."""
        return self.before.version + 1 if self.before else 1


FIRST = Origin()


def commit(
    plan: Plan, config: BuildConfig, *, analyst: Analyzer, options: PipelineOptions, origin: Origin = FIRST
) -> Manifest:
    """Checks that everything is accounted for, then completes the dataset; the manifest appears last."""
    folder = BuildFolder(Path(config.output))
    receipts = load_receipts(folder)
    counts = count_up(receipts)
    check_accounting(plan, receipts, counts, folder)
    check_budget(counts, config, folder)
    splits = describe_splits(plan, receipts, origin.before)
    names = [split.name for split in splits]
    leaks = check_leaks(receipts, names, config, older=origin.root)
    _analyze(plan, splits, receipts, config, analyst=analyst, options=options)
    _describe(plan, splits, config, receipts, origin.version)
    manifest = make_manifest(plan, splits, config, counts, origin)
    manifest = manifest.model_copy(update={"leaks": leaks, "shuffle": measure_shuffle(names, receipts, folder)})
    report = render_report(manifest, folder.root, shards=(folder.root, *([origin.root] if origin.root else [])))
    write_atomically(folder.root / "report.html", report.encode())
    write_spare(folder.root, folder.files(), folder.root / SPARE)
    manifest = manifest.model_copy(update={"files": list_files(folder, origin)})
    write_local(folder.root, folder.seen_here.iterdir())
    write_manifest(folder.root, manifest)
    shutil.rmtree(folder.work)
    return manifest


def describe_splits(plan: Plan, receipts: Sequence[Receipt], before: Manifest | None) -> tuple[SplitEntry, ...]:
    """The manifest's entries for splits and shards."""
    used = next_indices(before)
    names = [split.name for split in plan.splits]
    # A split that has lost all its inputs stays: it remembers which names were used.
    names += [name for name in used if name not in names]
    return tuple(_split_entry(name, [r for r in receipts if r.split == name], used.get(name, 0)) for name in names)


def next_indices(manifest: Manifest | None) -> dict[str, int]:
    """The index that the next shard of each split gets."""
    return {split.name: split.next_index for split in manifest.splits} if manifest else {}


def _split_entry(name: str, receipts: Sequence[Receipt], used: int) -> SplitEntry:
    labels: Counter[str] = Counter()
    for receipt in receipts:
        labels.update(receipt.labels)
    return SplitEntry(
        name=name,
        records=sum(receipt.records for receipt in receipts),
        bytes=sum(receipt.bytes for receipt in receipts),
        labels=dict(sorted(labels.items())),
        shards=tuple(ShardEntry.of(each.shard.name, each.written, inputs=each.inputs) for each in receipts),
        next_index=max([used, *(receipt.index + 1 for receipt in receipts)]),
    )


def _analyze(
    plan: Plan,
    splits: Sequence[SplitEntry],
    receipts: Sequence[Receipt],
    config: BuildConfig,
    *,
    analyst: Analyzer,
    options: PipelineOptions,
) -> None:
    """Runs tf.Transform over the analysed splits and keeps its SavedModel."""
    folder = BuildFolder(Path(config.output))
    chosen = analyzed_splits(splits, config)
    analysis = Analysis(
        files=[folder.facts(receipt.shard) for receipt in receipts if receipt.split in chosen],
        output=folder.work,
        labels=plan.labels,
        config=config,
        content=plan.content,
        options=options.get_all_options(drop_default=True),
    )
    shutil.rmtree(folder.work / "transform_fn", ignore_errors=True)  # an interrupted run's
    counted = analyst.run(analysis)
    written: Counter[str] = Counter()
    for split in splits:
        written.update(split.labels if split.name in chosen else {})
    if counted != dict(written):
        raise ShardsmithError(f"tf.Transform counted other labels than were written: {counted} against {dict(written)}")
    shutil.rmtree(folder.root / "transform_fn", ignore_errors=True)
    (folder.work / "transform_fn").rename(folder.root / "transform_fn")


def analyzed_splits(splits: Sequence[SplitEntry], config: BuildConfig) -> set[str]:
    """The splits that define normalisation: those asked for; else train; else all."""
    filled = {split.name for split in splits if split.records}
    return filled & set(config.transform.analyze or ["train"]) or filled


def _describe(
    plan: Plan, splits: Sequence[SplitEntry], config: BuildConfig, receipts: Sequence[Receipt], version: int
) -> None:
    features = feature_list(config, plan.content)
    formats = {name for receipt in receipts for name in receipt.formats}
    image_format = formats.pop() if len(formats) == 1 else ""
    files = tfds_files(config.name, features, plan.labels, splits, image_format=image_format, version=version)
    for name, text in {"schema.pbtxt": schema_text(features, plan.labels), **files}.items():
        write_atomically(Path(config.output) / name, text.encode())


def make_manifest(
    plan: Plan, splits: tuple[SplitEntry, ...], config: BuildConfig, counts: Counts, origin: Origin
) -> Manifest:
    """The manifest, still without the list of other files."""
    recipe = origin.recipe or Recipe.of(config)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        version=origin.version,
        name=config.name,
        fingerprint=recipe.fingerprint,
        made_by=recipe.made_by,
        settings=recipe.settings,
        label_kind=config.labels.kind,
        labels=plan.labels,
        features=feature_list(config, plan.content),
        counts=counts,
        splits=splits,
        files=(),
        retired=list_retired(plan, origin),
    )
    earlier = origin.before.history if origin.before else ()
    return manifest.model_copy(update={"history": (*earlier, describe_version(plan, manifest, origin))})


def list_retired(plan: Plan, origin: Origin) -> tuple[FileEntry, ...]:
    """The shards of the version before that are no part of this one, with their indexes, as far as they are whole."""
    if not origin.before or not origin.root:
        return ()
    ended = {PlannedShard(-1, *place).name for place in plan.ended}
    entries = [shard for split in origin.before.splits for shard in split.shards]
    retired = [shard for shard in entries if shard.path.removesuffix(".tfrecord") in ended]
    files = [(each.path, each.sha256) for each in retired] + [(each.index, each.index_sha256) for each in retired]
    found = [
        (_entry_of(origin.root / name, origin.root), sha256) for name, sha256 in files if (origin.root / name).exists()
    ]
    # What is damaged is of no use to those who read the version before, and goes with it.
    return tuple(entry for entry, sha256 in found if entry.sha256 == sha256)


def describe_version(plan: Plan, manifest: Manifest, origin: Origin) -> HistoryEntry:
    """What the version is to its history."""
    before = origin.before
    differences = compare(Recipe.of_manifest(before), Recipe.of_manifest(manifest)) if before else []
    return HistoryEntry(
        version=manifest.version,
        command=origin.command,
        when=now_in_words(),
        fingerprint=manifest.fingerprint,
        inputs=manifest.counts.listed,
        **dataclasses.asdict(plan.changes),
        written=manifest.counts.written,
        new_shards=len(plan.shards),
        ended_shards=len(plan.ended),
        settings={each.name: (each.old, each.new) for each in differences},
    )


def now_in_words() -> str:
    """The time in UTC; as everywhere, SOURCE_DATE_EPOCH stands for it where bytes must not depend on the clock."""
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_files(folder: BuildFolder, origin: Origin = FIRST) -> tuple[FileEntry, ...]:
    """Every file that is neither a shard nor an index nor the manifest, and not true on this machine only."""
    known = {entry.path: entry for entry in origin.before.files} if origin.before else {}
    unlisted = {folder.root / LOCAL, folder.root / MANIFEST_COPY}
    paths = sorted(
        path
        for path in folder.root.rglob("*")
        if path.is_file() and path.suffix not in (".tfrecord", ".idx") and path not in unlisted
    )
    return tuple(
        _known_entry(path, folder.root, known, origin.root) or _entry_of(path, folder.root)
        for path in paths
        if not any(map(path.is_relative_to, (folder.work, folder.seen_here))) and not is_temporary(path.name)
    )


def _known_entry(path: Path, root: Path, known: Mapping[str, FileEntry], older: Path | None) -> FileEntry | None:
    """The entry that a file has in the version before, if it is the very same file."""
    name = path.relative_to(root).as_posix()
    same = older and name in known and (older / name).exists() and path.samefile(older / name)
    return known[name] if same else None


def _entry_of(path: Path, root: Path) -> FileEntry:
    return FileEntry(path=path.relative_to(root).as_posix(), bytes=path.stat().st_size, sha256=hash_file(path))
