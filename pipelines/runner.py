"""Runs the Beam job.

Options with the local runner as default, and slips found early.
"""

import difflib
import os
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from pipelines.config import BuildConfig
from pipelines.decoding.decoders import start_ahead
from pipelines.dedupe.marking import MarkDuplicates
from pipelines.pipeline import ListInputs, PlanShards, WriteShards
from pipelines.planning.dealing import DealSplits
from pipelines.planning.plan import Plan
from pipelines.values import PlannedShard
from pipelines.versions.carry import Carrier, CarryInputs
from pipelines.versions.match import MatchInputs
from pipelines.workspace.failures import explain_failures
from pipelines.workspace.layout import BuildFolder, load_plan
from pipelines.workspace.lock import Run
from pipelines.workspace.workers import noticing_dead_workers
from pipelines.writing.donor import FROM_NOTHING, Earlier
from shards.errors import UsageError

# Plain DirectRunner first tries to download Prism and then changes behaviour quietly; this one never does.
LOCAL_RUNNER = "FnApiRunner"
_LOCAL_RUNNERS = {LOCAL_RUNNER, "DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner"}


def parse_beam_options(arguments: Sequence[str], *, ours: Sequence[str]) -> PipelineOptions:
    """Beam's options; refuses what neither Beam nor we know (`ours`), which Beam itself would ignore."""
    options = PipelineOptions(list(arguments))
    if not options.view_as(StandardOptions).runner:
        options.view_as(StandardOptions).runner = LOCAL_RUNNER
    parser = _beam_parser()
    _, unknown = parser.parse_known_args(list(arguments))
    known = [*ours, *parser._option_string_actions]
    for argument in unknown:
        name = argument.split("=")[0]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        # Other runners take options that only their Java side knows; those pass unless they look like a slip.
        if near or is_local(options):
            hint = f"did you mean {near[0]}?" if near else "see --help; Beam's own options are passed through"
            raise UsageError(f"unknown option {name!r}; {hint}")
    return options


def _beam_parser() -> ArgumentParser:
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    for kind in PipelineOptions.__subclasses__():
        if "_add_argparse_args" in vars(kind):
            kind._add_argparse_args(parser)
    return parser


def is_local(options: PipelineOptions) -> bool:
    """Whether the job runs on this machine, in the runner that comes with Beam."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[2] in _LOCAL_RUNNERS


def decoders_per_worker(options: PipelineOptions) -> int:
    """How many inputs a worker processes at once, so that all workers together fill the machine."""
    direct = options.view_as(DirectOptions)
    if not is_local(options):
        return 2  # The runner places one worker per core; the second thread reads while the first computes.
    cores = os.cpu_count() or 1
    workers = 1 if runs_here(options) else direct.direct_num_workers or cores
    return max(1, -(-cores // workers))


def runs_here(options: PipelineOptions) -> bool:
    """Whether this very process is the worker."""
    return is_local(options) and options.view_as(DirectOptions).direct_running_mode == "in_memory"


def run_plan(config: BuildConfig, *, options: PipelineOptions) -> Plan:
    """Lists the source and plans the build, without opening an image or touching the output."""
    with tempfile.TemporaryDirectory() as scratch, explain_failures(config):
        path = Path(scratch) / "work" / "plan.json"
        path.parent.mkdir()
        with beam.Pipeline(options=options) as pipeline:
            refs = pipeline | "ListInputs" >> ListInputs(config) | "DealSplits" >> DealSplits(config)
            _ = refs | "PlanShards" >> PlanShards(config, path)
        return load_plan(path)


def run_build(config: BuildConfig, *, options: PipelineOptions, earlier: Earlier = FROM_NOTHING) -> Plan:
    """Writes every shard, or takes over what earlier runs have of it; returns the plan that was carried out."""
    folder, begun, past = BuildFolder(Path(config.output)), earlier.begun, earlier.past
    decoders, run = decoders_per_worker(options), Run.find(folder.root)
    if runs_here(options):
        start_ahead(decoders)
    with explain_failures(config), noticing_dead_workers(run):
        with beam.Pipeline(options=options) as pipeline:
            refs = pipeline | "ListInputs" >> ListInputs(config, str(folder.spool), run)
            if past:
                refs = refs | "MatchInputs" >> MatchInputs(config, past.root, past.retry, past.keep_missing)
            if config.dedupe.find != "none":
                refs = refs | "MarkDuplicates" >> MarkDuplicates(config, decoders, folder.duplicates, run)
            refs = refs | "DealSplits" >> DealSplits(config)
            plan = refs | "PlanShards" >> PlanShards(config, folder.plan, earlier.bound, run)
            side = beam.pvalue.AsSingleton(plan)
            _ = refs | "WriteShards" >> WriteShards(config, side, decoders, begun, past, run)
        return load_plan(folder.plan)


def run_compact(
    config: BuildConfig, shards: Sequence[PlannedShard], carrier: Carrier, *, options: PipelineOptions, earlier: Earlier
) -> Plan:
    """Writes the inputs of some shards into fewer, where that can be done; returns the plan that was carried out."""
    folder, begun, past = BuildFolder(Path(config.output)), earlier.begun, earlier.past
    run = Run.find(folder.root)
    with explain_failures(config), noticing_dead_workers(run):
        with beam.Pipeline(options=options) as pipeline:
            refs = pipeline | "CarryInputs" >> CarryInputs(carrier, tuple(shards))
            plan = refs | "PlanShards" >> PlanShards(config, folder.plan, earlier.bound, run)
            _ = refs | "WriteShards" >> WriteShards(config, beam.pvalue.AsSingleton(plan), 1, begun, past, run)
        return load_plan(folder.plan)
