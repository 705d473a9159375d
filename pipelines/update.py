"""Append and retry as functions: the next version of a dataset, at the price of what has changed.

New inputs make new shards. A shard is made again, under a new name, only if an input of it changed or went; it takes
over the records of all others. Everything is made aside and then put in place, the manifest last, so that whoever
reads the version before can go on.
"""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.analysis.analyst import Analyst
from pipelines.build import (
    analyze_and_commit,
    begin,
    build,
    check_output,
    describe_work,
    keeping,
    print_end,
    print_summary,
    write_shards,
)
from pipelines.config import BuildConfig
from pipelines.finish.commit import Origin, next_indices
from pipelines.inputs.objects import use_options
from pipelines.planning.plan import Plan, Rebuilt
from pipelines.recipe import Recipe, check_recipe
from pipelines.sources import check_sources
from pipelines.values import PlannedShard
from pipelines.workspace.layout import BuildFolder, link_file, load_receipt, load_receipts, save_plan
from pipelines.workspace.lock import announce, exclusive
from pipelines.writing.donor import Donor, Earlier
from shards.errors import ShardsmithError, UsageError
from shards.files import hash_file
from shards.local import write_local
from shards.manifest import Manifest, read_manifest


@dataclass(frozen=True)
class Policy:
    """What becomes of inputs that were rejected (`retry` tries them again) and of those that are no longer listed.

    Few of these are taken out; many only if `allow_removals` says so, and none with `keep_missing`.
    """

    retry: bool = False
    keep_missing: bool = False
    allow_removals: bool = False


@exclusive
def append(
    config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, started: float, policy: Policy
) -> Manifest:
    """Takes up what was added to the sources, changed there and removed from there, as a new version."""
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    check_complete(folder)
    return update(config, options=options, analyst=analyst, started=started, policy=policy)


@exclusive
def retry(
    config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, started: float, policy: Policy
) -> Manifest:
    """Tries rejected inputs again, of a finished dataset or of an unfinished build; else does what these do anyway."""
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    if folder.manifest.exists():
        return update(config, options=options, analyst=analyst, started=started, policy=replace(policy, retry=True))
    if not (folder.is_unfinished and folder.recipe.exists()):
        raise UsageError(
            f"output {folder.root} holds nothing to retry; build it first with `python -m pipelines build`"
        )
    check_recipe(Recipe.load(folder.recipe), Recipe.of(config), output=config.output)
    return build(config, options=options, analyst=analyst, overwrite=False, started=started, retry=True)


def update(
    config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, started: float, policy: Policy
) -> Manifest:
    """Makes the next version and puts it in place; leaves everything as it is if nothing has changed."""
    use_options(options)
    check_sources(config)
    check_output(config)
    folder = BuildFolder(Path(config.output))
    before = read_manifest(folder.root)
    differences = check_recipe(Recipe.of_manifest(before), Recipe.of(config), output=config.output)
    relaxed = [each for each in differences if each.only_takes_more]
    past = Donor(folder.root, retry=policy.retry or bool(relaxed), keep_missing=policy.keep_missing)
    staged = config.model_copy(update={"output": str(folder.next.root)})
    announce(folder.root)
    plan = _write_aside(staged, before, options=options, past=past, policy=policy)
    done = describe_work(plan, folder.next, shards=False)
    plan = settle(plan, folder)
    if not plan.shards and not plan.ended and not relaxed:
        return _nothing_new(config, folder, policy)
    adopt(plan, folder)
    origin = Origin("retry" if policy.retry else "append", before, folder.root)
    manifest = _commit(plan, staged, config, options=options, analyst=analyst, origin=origin)
    publish(folder, manifest)
    print_summary(manifest, config)
    print(describe_changes(manifest))
    print(done)
    print_end(config, f"{time.monotonic() - started:.1f} s in all")
    return manifest


def check_complete(folder: BuildFolder) -> None:
    """Refuses an output that has no version to go on from."""
    if not folder.manifest.exists():
        state = "an unfinished build; finish it" if folder.is_unfinished else "no dataset; build it"
        raise UsageError(f"output {folder.root} holds {state} first with `python -m pipelines build`")


def _write_aside(
    staged: BuildConfig, before: Manifest, *, options: PipelineOptions, past: Donor, policy: Policy
) -> Plan:
    """Writes the shards that the next version needs into its own folder, or goes on with that."""
    aside = BuildFolder(Path(staged.output))
    aside.reopen()  # one that was completed and not put in place is checked against its sources once more
    earlier = begin(aside, staged, anew=False, retry=policy.retry)
    bound = replace(
        earlier.bound,
        labels=before.labels,
        next_index=next_indices(before),
        inputs=None if policy.allow_removals else before.counts.listed,
        keep_missing=policy.keep_missing,
    )
    earlier = Earlier(earlier.begun or Donor(aside.root), past, bound)
    try:
        return write_shards(staged, options=options, earlier=earlier)
    except ShardsmithError:
        discard_empty(aside)
        raise


def discard_empty(aside: BuildFolder) -> None:
    """Removes the next version if no shard of it was written, so that a refusal leaves no trace."""
    if not any((aside.state / "receipts").glob("*.json")):
        shutil.rmtree(aside.root.parent)


def _commit(
    plan: Plan, staged: BuildConfig, config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, origin: Origin
) -> Manifest:
    with keeping(BuildFolder(Path(config.output))):
        return analyze_and_commit(plan, staged, options=options, analyst=analyst, origin=origin)


def settle(plan: Plan, folder: BuildFolder) -> Plan:
    """The plan without the shards that came out as they were; these stay, and learn by what to know their inputs."""
    same = [rebuilt for rebuilt in plan.rebuilt if is_unchanged(rebuilt, folder)]
    for rebuilt in same:
        old = PlannedShard(-1, rebuilt.shard.split, rebuilt.old_index)
        folder.next.seen(rebuilt.shard).replace(folder.next.seen(old))
        for path in folder.next.shard_files(rebuilt.shard):
            path.unlink(missing_ok=True)
    plan = replace(plan, rebuilt=tuple(each for each in plan.rebuilt if each not in same))
    save_plan(plan, folder.next.plan)
    return plan


def is_unchanged(rebuilt: Rebuilt, folder: BuildFolder) -> bool:
    """Whether a shard that was made again holds what it held, and left out what it left out."""
    old, new = PlannedShard(-1, rebuilt.shard.split, rebuilt.old_index), rebuilt.shard
    before, after = load_receipt(folder.receipt(old)), load_receipt(folder.next.receipt(new))
    rejects = [path for path in (folder.rejects(old), folder.next.rejects(new)) if path.exists()]
    return replace(after, index=before.index) == before and len({hash_file(path) for path in rejects}) < 2


def adopt(plan: Plan, folder: BuildFolder) -> None:
    """Gives the next version what is known of the shards that stay; the shards themselves are not touched."""
    for receipt in load_receipts(folder):
        if (receipt.split, receipt.index) in plan.ended:
            continue
        for old, new in zip(folder.shard_files(receipt.shard), folder.next.shard_files(receipt.shard), strict=True):
            if old.suffix not in (".tfrecord", ".idx") and old.exists() and not new.exists():
                link_file(old, new)
    if (folder.root / "rejected" / "quarantine").is_dir():
        for path in (folder.root / "rejected" / "quarantine").rglob("*"):
            if path.is_file() and not folder.next.quarantine(path.name).exists():
                folder.next.quarantine(path.name).parent.mkdir(parents=True, exist_ok=True)
                link_file(path, folder.next.quarantine(path.name))


def publish(folder: BuildFolder, manifest: Manifest) -> None:
    """Puts the next version in place; shards that ended with it stay for the readers of the version before."""
    shards = [shard for split in manifest.splits for shard in split.shards]
    keep = {path for shard in shards for path in (shard.path, shard.index)} | {each.path for each in manifest.retired}
    folder.publish_next(keep=keep)


def _nothing_new(config: BuildConfig, folder: BuildFolder, policy: Policy) -> Manifest:
    """Keeps the dataset, and what was learnt of its sources on the way."""
    for path in folder.next.seen_here.iterdir():
        kept = folder.seen_here / path.name
        if policy.keep_missing and kept == folder.sources:
            continue  # what the sources list is not all that the dataset has
        if not kept.exists() or hash_file(kept) != hash_file(path):
            path.replace(kept)
    write_local(folder.root, folder.seen_here.iterdir())
    shutil.rmtree(folder.work)
    manifest = read_manifest(config.output)
    print(describe_nothing(sum(manifest.counts.rejected.values()), config, policy))
    print(f"the dataset in {config.output} is still what it was: version {manifest.version}")
    return manifest


def describe_nothing(rejected: int, config: BuildConfig, policy: Policy) -> str:
    """Why there is no new version."""
    if policy.retry and rejected:
        return f"{rejected:,} inputs are still rejected, and nothing else has changed; see {config.output}/rejected"
    if policy.retry:
        return "nothing to do: no input is rejected, and none was added, changed or removed"
    changed = "added or changed" if policy.keep_missing else "added, changed or removed"
    tried = f"; {rejected:,} are rejected: `python -m pipelines retry` tries them again" if rejected else ""
    return f"nothing to do: no input was {changed}{tried}"


def describe_changes(manifest: Manifest) -> str:
    """What the newest version is to the one before."""
    last = manifest.history[-1]
    same = sum(len(split.shards) for split in manifest.splits) - last.new_shards
    return (
        f"version {last.version}: {last.added:,} inputs added, {last.removed:,} removed, {last.changed:,} changed; "
        f"{last.new_shards:,} new shards, {last.ended_shards:,} ended, {same:,} as they were"
    )
