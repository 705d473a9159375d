"""Ends a build: accounting, error budget, analysis, descriptions, and the manifest last of all."""

import dataclasses
import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.analyst import Analysis, Analyst
from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder, load_receipt
from pipelines.plan import Plan
from pipelines.report import read_rejects, render_report
from pipelines.schema import feature_list, schema_text, tfds_files
from pipelines.values import Account, Receipt
from shards import __version__
from shards.errors import ShardsmithError
from shards.files import hash_file, write_atomically
from shards.manifest import FORMAT_VERSION, Counts, FileEntry, Manifest, ShardEntry, SourceEntry, SplitEntry

# The packages whose versions can change the bytes of a shard.
BYTE_MAKERS = ("simplejpeg", "opencv-python-headless", "pillow")


def commit(plan: Plan, config: BuildConfig, *, analyst: Analyst, options: PipelineOptions) -> Manifest:
    """Checks that everything is accounted for, then completes the dataset; the manifest appears last."""
    folder = BuildFolder(Path(config.output))
    receipts = [load_receipt(folder.receipt(shard)) for shard in plan.shards if folder.receipt(shard).exists()]
    counts = count_up(receipts)
    check_accounting(plan, receipts, counts)
    check_budget(counts, config, folder)
    splits = describe_splits(plan, receipts)
    _analyze(plan, splits, config, analyst=analyst, options=options)
    _describe(plan, splits, config, receipts)
    manifest = make_manifest(plan, splits, config, counts)
    write_atomically(folder.root / "report.html", render_report(manifest, folder.root).encode())
    manifest = manifest.model_copy(update={"files": list_files(folder.root)})
    shutil.rmtree(folder.work)
    write_atomically(folder.manifest, manifest.to_json().encode())
    return manifest


def count_up(receipts: Sequence[Receipt]) -> Counts:
    """The accounting over all shards."""
    rejected: Counter[str] = Counter()
    accounts: defaultdict[tuple[str, str], Account] = defaultdict(Account)
    for receipt in receipts:
        rejected.update(receipt.rejected)
        for source, account in receipt.sources.items():
            accounts[source, receipt.split] += account
    return Counts(
        listed=sum(receipt.listed for receipt in receipts),
        written=sum(receipt.records for receipt in receipts),
        rejected=dict(sorted(rejected.items())),
        duplicates=sum(receipt.duplicates for receipt in receipts),
        boxes_kept=sum(receipt.boxes_kept for receipt in receipts),
        boxes_dropped=sum(receipt.boxes_dropped for receipt in receipts),
        kept_truncated=sum(receipt.kept_truncated for receipt in receipts),
        sources=tuple(
            SourceEntry(source=source, split=split, **dataclasses.asdict(account))
            for (source, split), account in accounts.items()
        ),
    )


def check_accounting(plan: Plan, receipts: Sequence[Receipt], counts: Counts) -> None:
    """Every planned shard was written, and every listed input is in exactly one account."""
    if len(receipts) != len(plan.shards):
        raise ShardsmithError(f"{len(receipts)} of {len(plan.shards)} planned shards were written; run the build again")
    if problems := counts.problems():
        raise ShardsmithError(f"accounting does not hold: {problems[0]}; run the build again")
    if counts.listed != plan.images:
        raise ShardsmithError(
            f"accounting does not hold: {plan.images} inputs were planned, {counts.listed} came; "
            "did the source change during the build? Run it again"
        )


def check_budget(counts: Counts, config: BuildConfig, folder: BuildFolder) -> None:
    """Fails a build with more rejects than `max_reject_fraction` allows, and says what they are."""
    rejected = sum(counts.rejected.values())
    if counts.written == 0:
        raise ShardsmithError(f"no image could be used: {rejected_summary(counts, folder)}")
    assert isinstance(config.max_reject_fraction, float), "budgets by reason come with the accounts"
    if rejected > config.max_reject_fraction * counts.listed:
        raise ShardsmithError(
            f"{rejected} of {counts.listed} inputs were rejected ({rejected / counts.listed:.2%}), "
            f"max_reject_fraction allows {config.max_reject_fraction:.2%}: {rejected_summary(counts, folder)}\n"
            f"  the full list is in {folder.root / 'rejected'}; mend or remove these files, "
            f"or allow them with --set max_reject_fraction={_round_up(rejected / counts.listed)}"
        )


def _round_up(fraction: float) -> float:
    return min(1.0, -(-fraction * 1000 // 1) / 1000)


def rejected_summary(counts: Counts, folder: BuildFolder, *, examples: int = 5) -> str:
    """Counts by reason, then the first few rejects by key."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.rejected.items())
    shown = [
        f"\n  {row['key']}: {row['reason']}: {row['message']}" for row in read_rejects(folder.root, limit=examples)
    ]
    more = sum(counts.rejected.values()) - len(shown)
    return reasons + "".join(shown) + (f"\n  and {more} more" if more > 0 else "")


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
    settings = config.byte_shaping()
    made_by = {"shardsmith": __version__} | {name: version(name) for name in BYTE_MAKERS}
    canonical = json.dumps([settings, made_by], sort_keys=True).encode()
    return Manifest(
        format_version=FORMAT_VERSION,
        name=config.name,
        fingerprint=hashlib.sha256(canonical).hexdigest(),
        made_by=made_by,
        settings=settings,
        label_kind=config.labels.kind,
        labels=plan.labels,
        features=feature_list(config, plan.content),
        counts=counts,
        splits=splits,
        files=(),
    )


def list_files(root: Path) -> tuple[FileEntry, ...]:
    """Every file of the dataset that is neither a shard nor an index nor the manifest."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix not in (".tfrecord", ".idx"))
    return tuple(
        FileEntry(path=path.relative_to(root).as_posix(), bytes=path.stat().st_size, sha256=hash_file(path))
        for path in paths
        if ".build" not in path.relative_to(root).parts
    )
