"""Two commands as functions: a build from checks to summary, and its dry run."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from rich.console import Console
from rich.table import Table

from pipelines.analysis.analyst import Analyst
from pipelines.config import BuildConfig
from pipelines.dedupe.sides import read_found
from pipelines.finish.commit import FIRST, Origin, commit
from pipelines.finish.leak_check import leaks_in_words
from pipelines.inputs.objects import use_options
from pipelines.inputs.spool import drop_stale
from pipelines.inputs.storage import is_folder, is_remote
from pipelines.planning.plan import Past, Plan
from pipelines.recipe import Recipe, compare
from pipelines.runner import is_local, run_build, run_plan
from pipelines.sources import check_sources, partition_sources, resolve, stamp
from pipelines.sources.folders import root_of
from pipelines.versions.confirm import confirm
from pipelines.versions.scan import save_scan
from pipelines.workspace.layout import BuildFolder, load_plan, load_receipt, load_receipts, sweep_unplanned
from pipelines.workspace.lock import announce, exclusive
from pipelines.workspace.progress import show_progress
from pipelines.writing.donor import Donor, Earlier
from shards.errors import ShardsmithError, UsageError
from shards.manifest import Manifest
from shards.quiet import captured_stderr


@exclusive
def build(
    config: BuildConfig,
    *,
    options: PipelineOptions,
    analyst: Analyst,
    overwrite: bool,
    started: float,
    retry: bool = False,
) -> Manifest:
    """Builds the dataset, or goes on where an interrupted build stopped; says what was made, where, and what is next.

    A dataset that is finished and still what its sources say is left as it is. `retry` tries what an unfinished build
    rejected once more.
    """
    use_options(options)  # the sources that it names may be remote, and are looked at before Beam has seen them
    check_sources(config)
    check_output(config)
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    if folder.manifest.exists() and not overwrite:
        return confirm(config, folder)
    check_free(folder, overwrite=overwrite)
    announce(folder.root)
    # A finished dataset stays what it is until the one that replaces it is complete.
    target = folder.next if folder.manifest.exists() else folder
    staged = config.model_copy(update={"output": str(target.root)})
    earlier = begin(target, staged, anew=overwrite, retry=retry)
    writing = time.monotonic()
    with keeping(folder):
        plan = write_shards(staged, options=options, earlier=earlier)
        rate = plan.images / (time.monotonic() - writing)
        done = describe_work(plan, target) if earlier.begun else ""
        manifest = analyze_and_commit(plan, staged, options=options, analyst=analyst)
    if target != folder:
        folder.publish_next(anew=True)
    print_summary(manifest, config)
    if done:
        print(done)
    print_end(config, f"{rate:,.0f} inputs/s written, {time.monotonic() - started:.1f} s in all")
    return manifest


@contextmanager
def keeping(folder: BuildFolder) -> Iterator[None]:
    """Adds to a failure, where there is a finished dataset, that it is still there."""
    try:
        yield
    except ShardsmithError as error:
        if not folder.manifest.exists():
            raise
        raise type(error)(f"{error}\n  the dataset in {folder.root} is still what it was") from error


def begin(folder: BuildFolder, config: BuildConfig, *, anew: bool, retry: bool) -> Earlier:
    """Prepares the output; returns what an interrupted build has left there that can be gone on from."""
    begun = None if anew or not folder.is_unfinished else find_begun(folder, config, retry=retry)
    folder.prepare(anew=begun is None)
    if begun:
        drop_stale(folder.spool, {part.number: stamp(part, config) for part in partition_sources(config)})
        folder.note_again(begun.retry)
    Recipe.of(config).save(folder.recipe)
    ranges = load_plan(folder.begun_plan).splits if begun else ()
    return Earlier(begun, bound=Past(starts={split.name: split.starts for split in ranges}))


def check_free(folder: BuildFolder, *, overwrite: bool) -> None:
    """Refuses an output that is something else than a dataset."""
    ours = folder.work.is_dir() or (overwrite and folder.manifest.exists())
    if folder.root.is_dir() and any(folder.root.iterdir()) and not ours:
        what = "not a dataset"
        if folder.state.is_dir():
            what = "holds what is left of a dataset without its manifest: restore that, or remove the directory"
        raise UsageError(f"output {folder.root} is not empty and {what}; choose another --output")


def find_begun(folder: BuildFolder, config: BuildConfig, *, retry: bool) -> Donor | None:
    """The unfinished build, if this one goes on with it; says so, or why it starts over."""
    try:
        differences = compare(Recipe.load(folder.recipe), Recipe.of(config))
    except (OSError, ValueError, TypeError):
        return None  # it did not come that far
    if harm := [each for each in differences if not each.only_takes_more]:
        told = "; ".join(map(str, harm[:3])) + (f"; and {len(harm) - 3} more" if len(harm) > 3 else "")
        print(f"an unfinished build is here, but {told}: starting over", file=sys.stderr)
        return None
    count = sum(folder.shard(receipt.shard).exists() for receipt in load_receipts(folder))
    print(f"going on with an unfinished build: {count:,} shards are written", file=sys.stderr)
    return Donor(folder.root, retry=retry or bool(differences) or folder.again.exists())


def write_shards(config: BuildConfig, *, options: PipelineOptions, earlier: Earlier) -> Plan:
    """Lists, plans and writes into the prepared output, while a person can watch."""
    folder = BuildFolder(Path(config.output))
    with captured_stderr(folder.worker_log) as terminal, show_progress(folder, terminal):
        plan = run_build(config, options=options, earlier=earlier)
    check_not_empty(plan, config)
    save_scan(folder)
    sweep_unplanned(plan, folder)
    return plan


def analyze_and_commit(
    plan: Plan, config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, origin: Origin = FIRST
) -> Manifest:
    """Turns written shards into a complete dataset."""
    print("checking the accounts, analysing labels, pixels and columns with tf.Transform", file=sys.stderr)
    return commit(plan, config, analyst=analyst, options=_analysis_options(options), origin=origin)


def describe_work(plan: Plan, folder: BuildFolder, *, shards: bool = True) -> str:
    """What was processed, what came of it, and what was taken over from an earlier run or version."""
    written_now = [shard for shard in plan.shards if folder.taken(shard).exists()]
    receipts = [load_receipt(folder.receipt(shard)) for shard in written_now]
    notes = [folder.taken(shard).read_text().split() for shard in written_now]
    taken, refused, again = (sum(int(note[column]) for note in notes) for column in range(3))
    written = sum(receipt.records for receipt in receipts) - taken
    rejected = sum(sum(receipt.rejected.values()) for receipt in receipts) - refused
    kept = len(plan.shards) - len(written_now)
    why = f" ({again:,} of them again: their inputs, rejects or label ids changed)" if again else ""
    told = f"processed now: {written + rejected:,} inputs, {written:,} written, {rejected:,} rejected"
    if shards:
        told += f"\nshards: {kept:,} kept, {len(written_now):,} written now{why}"
    return f"{told}, with {taken:,} records taken over unread"


def plan(config: BuildConfig, *, options: PipelineOptions) -> Plan:
    """Lists the source and prints what a build would make."""
    use_options(options)  # the sources that it names may be remote, and are looked at before Beam has seen them
    check_sources(config)
    planned = run_plan(config, options=options)
    check_not_empty(planned, config)
    print_plan(planned)
    return planned


def check_output(config: BuildConfig) -> None:
    """Refuses outputs that cannot work before anything is written."""
    if "://" in config.output:
        raise UsageError(f"output {config.output}: remote outputs are not supported yet; choose a local directory")
    for each in config.all_sources:
        if each.kind != "python" and not is_remote(each.path):
            # Only what is found by walking a folder could find the output as well.
            check_apart(Path(config.output), Path(root_of(each) if resolve(each).kind == "folder" else each.path))


def check_apart(output: Path, source: Path) -> None:
    """Refuses an output inside of a source, and the other way round."""
    inputs = (source if source.is_dir() else source.parent).resolve()
    if source.is_dir() and (output.resolve() == inputs or inputs in output.resolve().parents):
        raise UsageError(f"output {output} lies inside the source {source}; the next build would read it as input")
    if output.resolve() in (inputs, *inputs.parents):
        raise UsageError(f"output {output} holds the source {source}; choose a directory of its own")


def check_not_empty(plan: Plan, config: BuildConfig) -> None:
    """Refuses sources without inputs, or without one that can be used."""
    if not plan.listed:
        what = "has no image files" if all(is_folder(each.path) for each in config.all_sources) else "gives no inputs"
        raise UsageError(f"{describe_sources(config)} {what}")
    if plan.faulty == plan.listed:
        raise UsageError(f"{describe_sources(config)}: none of the {plan.listed:,} inputs can be used; {plan.fault}")


def describe_sources(config: BuildConfig) -> str:
    """The sources by their paths."""
    return "source.path " + ", ".join(source.path for source in config.all_sources)


def _analysis_options(options: PipelineOptions) -> PipelineOptions:
    """Locally the analysis runs in this process: TensorFlow in every worker would cost more than it saves."""
    if is_local(options):
        options = PipelineOptions.from_dictionary(options.get_all_options(drop_default=True))
        options.view_as(DirectOptions).direct_running_mode = "in_memory"
        options.view_as(DirectOptions).direct_num_workers = 1
    return options


def print_plan(plan: Plan) -> None:
    """The plan as a table."""
    rows = [
        (split.name, f"{split.images:,}", f"{len(split.starts):,}", f"{split.estimated_bytes / 1e6:,.1f}")
        for split in plan.splits
    ]
    total = (
        "total",
        f"{plan.images:,}",
        f"{len(plan.shards):,}",
        f"{sum(s.estimated_bytes for s in plan.splits) / 1e6:,.1f}",
    )
    _print_table("Plan", ("split", "inputs", "shards", "estimated MB"), [*rows, total])
    if plan.labels:
        shown = ", ".join(f"{label} ({plan.label_counts[label]:,})" for label in plan.labels[:12])
        print(f"{len(plan.labels)} classes: {shown}{', ...' if len(plan.labels) > 12 else ''}")
    if plan.faulty:
        print(f"{plan.faulty:,} inputs cannot be used and will be rejected; one of them: {plan.fault}")
    print("nothing was written; build it with `python -m pipelines build` and the same arguments")


def print_summary(manifest: Manifest, config: BuildConfig) -> None:
    """What was made, and what became of every input."""
    rows = [
        (split.name, f"{split.records:,}", f"{len(split.shards):,}", f"{split.bytes / 1e6:,.1f}")
        for split in manifest.splits
    ]
    _print_table(manifest.name, ("split", "examples", "shards", "MB"), rows)
    counts, rejected = manifest.counts, sum(manifest.counts.rejected.values())
    if len(config.all_sources) > 1:
        header = ("source", "split", "listed", "written", "rejected", "duplicates")
        _print_table("Accounts", header, [[str(cell) for cell in dict(each).values()] for each in counts.sources])
    print(
        f"{counts.listed:,} listed = {counts.written:,} written + {rejected:,} rejected "
        f"+ {counts.duplicates:,} duplicates"
    )
    if rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.rejected.items())
        print(f"rejected: {reasons}; see {config.output}/rejected")
    if config.dedupe.find != "none":
        listing = BuildFolder(Path(config.output)).duplicates
        print(f"{read_found(listing)}; see {listing}")
    if counts.kept_truncated:
        print(f"{counts.kept_truncated:,} written pictures were cut off and kept (image.truncated)")
    if len(manifest.splits) > 1:
        print(f"leaks: {leaks_in_words(manifest)}")
    if config.boxes:
        print(f"boxes: {counts.boxes_kept:,} kept, {counts.boxes_dropped:,} dropped")


def print_end(config: BuildConfig, speed: str) -> None:
    """Where everything is, and the next command."""
    print(speed)
    print(f"dataset: {config.output}   report: {config.output}/report.html")
    print(f"next:    python -m shards verify {config.output}")


def _print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(name, justify="left" if name in ("source", "split") else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
