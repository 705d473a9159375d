"""Retry as a function: the dataset that a fresh build would make now, at the price of what was rejected or has changed.

A whole new dataset is made beside the old one, which gives it every shard and every record whose inputs are the same;
then it takes the old one's place. A build that was cut off, or that went over its budget, is taken further in the same
way.
"""

import shutil
import time
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.analyst import Analyst
from pipelines.build import analyze_and_commit, check_output, print_end, print_summary, write_shards
from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder, load_receipt
from pipelines.plan import Plan
from pipelines.recipe import Recipe, check_recipe
from pipelines.sources import check_sources
from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from shards.manifest import Manifest, read_manifest


def retry(config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, started: float) -> Manifest:
    """Brings the dataset up to what its sources are now, and says what was done."""
    check_sources(config)
    check_output(config)
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    check_dataset(folder, config)
    staged = config.model_copy(update={"output": str(folder.next.root)})
    shutil.rmtree(folder.next.root, ignore_errors=True)
    folder.next.prepare(overwrite=True)
    plan = write_shards(staged, options=options, donor=folder.root)
    done = describe_work(plan, folder.next)
    if folder.manifest.exists() and is_unchanged(folder):
        shutil.rmtree(folder.work)
        return _nothing_new(config)
    manifest = replace_dataset(plan, config, staged, options=options, analyst=analyst)
    print_summary(manifest, config)
    print(done)
    print_end(config, f"{time.monotonic() - started:.1f} s in all")
    return manifest


def check_dataset(folder: BuildFolder, config: BuildConfig) -> None:
    """Refuses an output that cannot be taken further, or not with these settings."""
    if not (folder.recipe.exists() and folder.plan.exists()):
        raise UsageError(
            f"output {folder.root} holds nothing to retry; build it first with `python -m pipelines build`"
        )
    check_recipe(Recipe.load(folder.recipe), Recipe.of(config), output=config.output)


def replace_dataset(
    plan: Plan, config: BuildConfig, staged: BuildConfig, *, options: PipelineOptions, analyst: Analyst
) -> Manifest:
    """Completes the staged dataset and puts it in place.

    A complete dataset gives way to a complete one only. An incomplete one gives way at once, so that the next retry
    goes on from here even if the rejects are still too many.
    """
    folder = BuildFolder(Path(config.output))
    if not folder.manifest.exists():
        folder.publish_next()
        return analyze_and_commit(plan, config, options=options, analyst=analyst)
    try:
        manifest = analyze_and_commit(plan, staged, options=options, analyst=analyst)
    except ShardsmithError as error:
        raise type(error)(f"{error}\n  the dataset in {config.output} is still what it was") from error
    folder.publish_next()
    return manifest


def is_unchanged(folder: BuildFolder) -> bool:
    """Whether the next dataset would hold what this one holds: its state says so, down to the hash of every shard."""
    return all(_hashes(folder.root / name) == _hashes(folder.next.root / name) for name in ("state", "rejected"))


def _hashes(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): hash_file(path) for path in root.rglob("*") if path.is_file()}


def _nothing_new(config: BuildConfig) -> Manifest:
    manifest = read_manifest(config.output)
    still = sum(manifest.counts.rejected.values())
    if still:
        print(f"{still:,} inputs are still rejected, and nothing else has changed; see {config.output}/rejected")
    else:
        print("nothing to retry: no input is rejected, and none was added, changed or removed")
    print(f"the dataset in {config.output} is still what it was")
    return manifest


def describe_work(plan: Plan, folder: BuildFolder) -> str:
    """What was tried, what came of it, and what was taken over."""
    rewritten = [shard for shard in plan.shards if folder.taken(shard).exists()]
    receipts = [load_receipt(folder.receipt(shard)) for shard in rewritten]
    taken = sum(int(folder.taken(shard).read_text()) for shard in rewritten)
    written = sum(receipt.records for receipt in receipts) - taken
    rejected = sum(sum(receipt.rejected.values()) for receipt in receipts)
    kept = len(plan.shards) - len(rewritten)
    return (
        f"tried again: {written + rejected:,} inputs, {written:,} now written, {rejected:,} still rejected\n"
        f"shards: {kept:,} kept, {len(rewritten):,} rewritten, with {taken:,} records taken over unread"
    )
