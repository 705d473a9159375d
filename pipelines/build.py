"""Two commands as functions: a build from checks to summary, and its dry run."""

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from rich.console import Console
from rich.table import Table

from pipelines.analyst import Analyst
from pipelines.commit import commit
from pipelines.config import BuildConfig
from pipelines.layout import BuildFolder
from pipelines.objects import use_options
from pipelines.plan import Plan
from pipelines.progress import show_progress
from pipelines.recipe import Recipe
from pipelines.runner import is_local, run_build, run_plan
from pipelines.sources import check_sources, resolve
from pipelines.sources.folders import root_of
from pipelines.storage import is_folder, is_remote
from shards.errors import UsageError
from shards.manifest import Manifest
from shards.quiet import captured_stderr


def build(
    config: BuildConfig, *, options: PipelineOptions, analyst: Analyst, overwrite: bool, started: float
) -> Manifest:
    """Builds the dataset and says what was made, where, and what to do next."""
    use_options(options)  # the sources that it names may be remote, and are looked at before Beam has seen them
    check_sources(config)
    check_output(config)
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    folder.prepare(overwrite=overwrite)
    writing = time.monotonic()
    plan = write_shards(config, options=options)
    rate = plan.images / (time.monotonic() - writing)
    manifest = analyze_and_commit(plan, config, options=options, analyst=analyst)
    print_summary(manifest, config)
    print_end(config, f"{rate:,.0f} inputs/s written, {time.monotonic() - started:.1f} s in all")
    return manifest


def write_shards(config: BuildConfig, *, options: PipelineOptions, donor: Path | None = None) -> Plan:
    """Lists, plans and writes into the prepared output, while a person can watch."""
    folder = BuildFolder(Path(config.output))
    Recipe.of(config).save(folder.recipe)
    with captured_stderr(folder.worker_log) as terminal, show_progress(folder, terminal):
        plan = run_build(config, options=options, donor=donor)
    check_not_empty(plan, config)
    return plan


def analyze_and_commit(plan: Plan, config: BuildConfig, *, options: PipelineOptions, analyst: Analyst) -> Manifest:
    """Turns written shards into a complete dataset."""
    print("checking the accounts, analysing labels, pixels and columns with tf.Transform", file=sys.stderr)
    return commit(plan, config, analyst=analyst, options=_analysis_options(options))


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
    if not plan.images:
        what = "has no image files" if all(is_folder(each.path) for each in config.all_sources) else "gives no inputs"
        raise UsageError(f"{describe_sources(config)} {what}")
    if plan.faulty == plan.images:
        raise UsageError(f"{describe_sources(config)}: none of the {plan.images:,} inputs can be used; {plan.fault}")


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
    if counts.kept_truncated:
        print(f"{counts.kept_truncated:,} written pictures were cut off and kept (image.truncated)")
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
