"""Beam options, threads, and failures told in the user's words."""

import os

import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
from conftest import make_config
from pictures import write_class_folders

from pipelines.runner import decoders_per_worker, is_local, parse_beam_options, run_build, run_plan
from pipelines.workspace.failures import explain_failures
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError, UsageError

OURS = ("--source", "--output", "--resize", "--set", "--overwrite")


def test_the_local_runner_is_pinned():
    options = parse_beam_options([], ours=OURS)
    assert options.view_as(StandardOptions).runner == "FnApiRunner"
    assert is_local(options)
    assert is_local(parse_beam_options(["--runner=DirectRunner"], ours=OURS))
    assert not is_local(parse_beam_options(["--runner=FlinkRunner"], ours=OURS))


def test_beam_options_pass_through():
    options = parse_beam_options(["--direct_running_mode=multi_processing", "--direct_num_workers=3"], ours=OURS)
    assert options.view_as(DirectOptions).direct_num_workers == 3
    assert options.view_as(DirectOptions).direct_running_mode == "multi_processing"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--ouput=x", "unknown option '--ouput'; did you mean --output?"),
        ("--direct_num_worker=2", "unknown option '--direct_num_worker'; did you mean --direct_num_workers?"),
        ("--frobnicate", "unknown option '--frobnicate'; see --help; Beam's own options are passed through"),
        ("stray", "unknown option 'stray'; see --help; Beam's own options are passed through"),
    ],
)
def test_slips_are_refused(argument, message):
    with pytest.raises(UsageError) as caught:
        parse_beam_options([argument], ours=OURS)
    assert str(caught.value) == message


def test_options_of_another_runners_java_side_pass_unless_they_look_like_a_slip():
    parse_beam_options(["--runner=FlinkRunner", "--execution_mode_for_batch=BATCH_FORCED"], ours=OURS)
    with pytest.raises(UsageError, match="did you mean --output"):
        parse_beam_options(["--runner=FlinkRunner", "--ouput=x"], ours=OURS)


@pytest.mark.parametrize(
    ("arguments", "cores", "threads"),
    [
        ([], 8, 8),
        (["--direct_running_mode=multi_processing", "--direct_num_workers=4"], 8, 2),
        (["--direct_running_mode=multi_processing", "--direct_num_workers=0"], 8, 1),
        (["--direct_running_mode=multi_threading", "--direct_num_workers=3"], 8, 3),
        (["--direct_running_mode=multi_processing", "--direct_num_workers=16"], 8, 1),
        (["--runner=FlinkRunner"], 8, 2),
    ],
)
def test_threads_fill_the_machine_once(arguments, cores, threads, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert decoders_per_worker(parse_beam_options(arguments, ours=OURS)) == threads


@pytest.mark.parametrize("mode", ["in_memory", "multi_processing"])
def test_a_users_mistake_found_by_a_worker_arrives_as_such(mode, tmp_path):
    source = write_class_folders(tmp_path / "raw", images=3)
    config = make_config(source, tmp_path / "out", shards={"count": 100})
    BuildFolder(tmp_path / "out").prepare(anew=False)
    options = parse_beam_options([f"--direct_running_mode={mode}", "--direct_num_workers=1"], ours=())
    with pytest.raises(UsageError) as caught:
        run_build(config, options=options)
    assert str(caught.value).startswith("shards.count asks for 100 shards, but ")
    assert str(caught.value).endswith("images; ask for fewer")


def test_system_failures_are_explained():
    config = make_config("raw", "out")
    with (
        pytest.raises(
            ShardsmithError, match="the build stopped: .*No space left on device.*; output out is incomplete"
        ),
        explain_failures(config),
    ):
        raise OSError(28, "No space left on device")
    with (
        pytest.raises(
            ShardsmithError, match="the build stopped: No space left on device: 'x'; output out is incomplete"
        ),
        explain_failures(config),
    ):
        raise RuntimeError("Traceback ...\nOSError: [Errno 28] No space left on device: 'x' [while running 'a']")
    with pytest.raises(KeyboardInterrupt), explain_failures(config):
        raise RuntimeError("KeyboardInterrupt [while running 'WriteShards/WriteShard']")
    with pytest.raises(ZeroDivisionError), explain_failures(config):
        raise ZeroDivisionError


def test_plan_touches_nothing(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=9)
    before = sorted(tmp_path.rglob("*"))
    plan = run_plan(make_config(source, tmp_path / "out"), options=parse_beam_options([], ours=()))
    assert plan.images == 18
    assert plan.labels == ("cat", "dog")
    assert sorted(tmp_path.rglob("*")) == before
