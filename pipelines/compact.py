"""Compact as a function: many small shards become few of the planned size, as a new version of the same examples.

No source is opened: every record is carried over as it is, to where the order of the keys' hashes puts it among all of
its split. A split that would not get fewer shards by that stays as it is.
"""

import shutil
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.analysis.analyst import Analysis
from pipelines.build import find_begun, print_end, print_summary
from pipelines.config import BuildConfig
from pipelines.finish.commit import Origin, analyzed_splits, commit, next_indices
from pipelines.planning.plan import Past, Plan
from pipelines.recipe import Recipe, check_recipe
from pipelines.runner import run_compact
from pipelines.update import adopt, check_complete, discard_empty, publish
from pipelines.versions.carry import Carrier
from pipelines.workspace.layout import BuildFolder, link_file, load_receipts, sweep_unplanned
from pipelines.workspace.lock import announce, exclusive
from pipelines.workspace.progress import show_progress
from pipelines.writing.donor import Donor, Earlier
from shards.errors import ShardsmithError, UsageError
from shards.manifest import Manifest, read_manifest
from shards.quiet import captured_stderr


@exclusive
def compact(config: BuildConfig, *, options: PipelineOptions, started: float) -> Manifest:
    """Merges shards where fewer would do; leaves everything as it is if there is nothing to merge."""
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    check_complete(folder)
    before = read_manifest(folder.root)
    recipe = compact_recipe(before, config)
    check_seen(before, folder)
    # The names of the classes are the dataset's; the file that the build took them from may be gone.
    labels = config.labels.model_copy(update={"names": ""})
    staged = config.model_copy(update={"output": str(folder.next.root), "labels": labels})
    announce(folder.root)
    plan = write_merged(staged, before, folder, options=options)
    if not plan.shards:
        return _nothing_better(config, before, folder)
    adopt(plan, folder)
    for known, same in ((folder.sources, folder.next.sources), (folder.duplicates, folder.next.duplicates)):
        if known.exists():
            link_file(known, same)
    origin = Origin("compact", before, folder.root, recipe)
    manifest = commit(plan, staged, analyst=SameAnalysis(before, folder.root), options=options, origin=origin)
    publish(folder, manifest)
    print_summary(manifest, config)
    print(describe_merge(before, manifest))
    print_end(config, f"{time.monotonic() - started:.1f} s in all")
    return manifest


def compact_recipe(before: Manifest, config: BuildConfig) -> Recipe:
    """The recipe of the dataset with the config's size of shards; refuses a config that is not the dataset's."""
    built = Recipe.of_manifest(before)
    # No record is made: who made them, and from where, is still true.
    check_recipe(built, replace(Recipe.of(config), made_by=built.made_by), output=config.output)
    return replace(built, settings=built.settings | {"shards": config.byte_shaping()["shards"]})


def check_seen(before: Manifest, folder: BuildFolder) -> None:
    """Refuses a dataset that was copied without what is known of its inputs."""
    if missing := [receipt for receipt in load_receipts(folder) if not folder.seen(receipt.shard).exists()]:
        raise UsageError(
            f"{folder.seen(missing[0].shard)} is not there, so what is known of the inputs cannot go along; "
            f"copy {folder.seen_here} from where version {before.version} was made"
        )


def write_merged(staged: BuildConfig, before: Manifest, folder: BuildFolder, *, options: PipelineOptions) -> Plan:
    """Writes the merged shards into the folder of the next version, or goes on with that."""
    aside = folder.next
    aside.reopen()
    begun = find_begun(aside, staged, retry=False) if aside.is_unfinished else None
    aside.prepare(anew=begun is None)
    Recipe.of(staged).save(aside.recipe)
    bound = Past(
        labels=before.labels,
        next_index=next_indices(before),
        shards={split.name: len(split.shards) for split in before.splits},
    )
    shards = tuple(receipt.shard for receipt in load_receipts(folder))
    earlier = Earlier(begun or Donor(aside.root), Donor(folder.root), bound)
    try:
        with captured_stderr(aside.worker_log) as terminal, show_progress(aside, terminal):
            plan = run_compact(staged, shards, Carrier.of(folder.root), options=options, earlier=earlier)
    except ShardsmithError:
        discard_empty(aside)
        raise
    sweep_unplanned(plan, aside)
    return plan


@dataclass(frozen=True)
class SameAnalysis:
    """Stands for tf.Transform: the same examples have the same analysis."""

    before: Manifest
    root: Path

    def run(self, analysis: Analysis, /) -> dict[str, int]:
        """Copies the SavedModel; returns how often each label was counted then."""
        shutil.copytree(self.root / "transform_fn", analysis.output / "transform_fn")
        chosen = analyzed_splits(self.before.splits, analysis.config)
        counted: Counter[str] = Counter()
        for split in self.before.splits:
            counted.update(split.labels if split.name in chosen else {})
        return dict(counted)


def _nothing_better(config: BuildConfig, before: Manifest, folder: BuildFolder) -> Manifest:
    discard_empty(folder.next)
    count = sum(len(split.shards) for split in before.splits)
    print(
        f"nothing to do: the {count:,} shards of {config.output} cannot be fewer; it is still version {before.version}"
    )
    return before


def describe_merge(before: Manifest, after: Manifest) -> str:
    """How many shards each split had and has."""
    now = {split.name: len(split.shards) for split in after.splits}
    merged = [f"{split.name} {len(split.shards):,} -> {now[split.name]:,}" for split in before.splits]
    return f"version {after.version}: the same {after.counts.written:,} examples; shards: {', '.join(merged)}"
