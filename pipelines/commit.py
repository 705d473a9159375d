"""Ends a build: accounting, error budget, analysis, descriptions, and the manifest last of all."""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.accounts import check_accounting, check_budget, count_up
from pipelines.analyst import Analysis, Analyst
from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder, load_receipt
from pipelines.plan import Plan
from pipelines.recipe import Recipe
from pipelines.report import render_report
from pipelines.schema import feature_list, schema_text, tfds_files
from pipelines.values import Receipt
from shards.errors import ShardsmithError
from shards.files import hash_file, write_atomically
from shards.manifest import FORMAT_VERSION, Counts, FileEntry, Manifest, ShardEntry, SplitEntry


def commit(plan: Plan, config: BuildConfig, *, analyst: Analyst, options: PipelineOptions) -> Manifest:
    """Checks that everything is accounted for, then completes the dataset; the manifest appears last."""
    folder = BuildFolder(Path(config.output))
    receipts = [load_receipt(folder.receipt(shard)) for shard in plan.shards if folder.receipt(shard).exists()]
    counts = count_up(receipts)
    check_accounting(plan, receipts, counts, folder)
    check_budget(counts, config, folder)
    splits = describe_splits(plan, receipts)
    _analyze(plan, splits, config, analyst=analyst, options=options)
    _describe(plan, splits, config, receipts)
    manifest = make_manifest(plan, splits, config, counts)
    write_atomically(folder.root / "report.html", render_report(manifest, folder.root).encode())
    manifest = manifest.model_copy(update={"files": list_files(folder)})
    shutil.rmtree(folder.work)
    write_atomically(folder.manifest, manifest.to_json().encode())
    return manifest


def describe_splits(plan: Plan, receipts: Sequence[Receipt]) -> tuple[SplitEntry, ...]:
    """The manifest's entries for splits and shards."""
    return tuple(_split_entry(split.name, [r for r in receipts if r.split == split.name]) for split in plan.splits)


def _split_entry(name: str, receipts: Sequence[Receipt]) -> SplitEntry:
    labels: Counter[str] = Counter()
    for receipt in receipts:
        labels.update(receipt.labels)
    return SplitEntry(
        name=name,
        records=sum(receipt.records for receipt in receipts),
        bytes=sum(receipt.bytes for receipt in receipts),
        labels=dict(sorted(labels.items())),
        shards=tuple(_shard_entry(receipt) for receipt in receipts),
    )


def _shard_entry(receipt: Receipt) -> ShardEntry:
    name = receipt.shard.name
    return ShardEntry(
        path=f"{name}.tfrecord",
        bytes=receipt.bytes,
        sha256=receipt.sha256,
        index=f"{name}.idx",
        index_sha256=receipt.index_sha256,
        records=receipt.records,
        inputs=receipt.inputs,
    )


def _analyze(
    plan: Plan, splits: Sequence[SplitEntry], config: BuildConfig, *, analyst: Analyst, options: PipelineOptions
) -> None:
    """Runs tf.Transform over the analysed splits and keeps its SavedModel."""
    folder = BuildFolder(Path(config.output))
    chosen = analyzed_splits(splits, config)
    analysis = Analysis(
        files=[folder.facts(shard) for shard in plan.shards if shard.split in chosen],
        output=folder.work,
        labels=plan.labels,
        config=config,
        content=plan.content,
        options=options.get_all_options(drop_default=True),
    )
    counted = analyst.run(analysis)
    written: Counter[str] = Counter()
    for split in splits:
        written.update(split.labels if split.name in chosen else {})
    if counted != dict(written):
        raise ShardsmithError(f"tf.Transform counted other labels than were written: {counted} against {dict(written)}")
    (folder.work / "transform_fn").rename(folder.root / "transform_fn")


def analyzed_splits(splits: Sequence[SplitEntry], config: BuildConfig) -> set[str]:
    """The splits that define normalisation: those asked for; else train; else all."""
    filled = {split.name for split in splits if split.records}
    return filled & set(config.transform.analyze or ["train"]) or filled


def _describe(plan: Plan, splits: Sequence[SplitEntry], config: BuildConfig, receipts: Sequence[Receipt]) -> None:
    features = feature_list(config, plan.content)
    formats = {name for receipt in receipts for name in receipt.formats}
    files = tfds_files(
        config.name, features, plan.labels, splits, image_format=formats.pop() if len(formats) == 1 else ""
    )
    for name, text in {"schema.pbtxt": schema_text(features, plan.labels), **files}.items():
        write_atomically(Path(config.output) / name, text.encode())


def make_manifest(plan: Plan, splits: tuple[SplitEntry, ...], config: BuildConfig, counts: Counts) -> Manifest:
    """The manifest, still without the list of other files."""
    recipe = Recipe.of(config)
    return Manifest(
        format_version=FORMAT_VERSION,
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
    )


def list_files(folder: BuildFolder) -> tuple[FileEntry, ...]:
    """Every file of the dataset that is neither a shard nor an index nor the manifest."""
    paths = sorted(
        path for path in folder.root.rglob("*") if path.is_file() and path.suffix not in (".tfrecord", ".idx")
    )
    return tuple(
        FileEntry(path=path.relative_to(folder.root).as_posix(), bytes=path.stat().st_size, sha256=hash_file(path))
        for path in paths
        if not path.is_relative_to(folder.work) and not path.is_relative_to(folder.seen_here)
    )
