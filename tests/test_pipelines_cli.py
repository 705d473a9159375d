"""The command line as a user types it: exit codes, texts, and what is on disk afterwards."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pictures import write_class_folders

from pipelines.__main__ import main, make_parser, read_config
from shards.errors import UsageError
from shards.verify import verify

ROOT = Path(__file__).parent.parent
GOOD = ("build", "--source", "tests", "--output", "o")


def run(*arguments: str, module: str = "pipelines") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=250
    )


def test_build_without_a_config_file(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=10)
    (source / "cat" / "bad.jpg").write_bytes(b"GIF")
    done = run(
        "build", "--source", str(source), "--output", str(tmp_path / "out"), "--resize", "center_crop:16",
        "--set", "max_reject_fraction=0.1", "--set", "splits.fractions={train: 1.0}",
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "21 listed = 20 written + 1 rejected + 0 duplicates" in done.stdout
    assert f"rejected: 1 unknown_format; see {tmp_path}/out/rejected" in done.stdout
    assert f"next:    python -m shards verify {tmp_path}/out" in done.stdout
    assert "Traceback" not in done.stderr
    assert "WARNING" not in done.stderr
    assert verify(tmp_path / "out") == []
    settings = json.loads((tmp_path / "out" / "manifest.json").read_text())["settings"]
    assert settings["image"]["resize"]["size"] == 16
    again = run("build", "--source", str(source), "--output", str(tmp_path / "out"))
    assert again.returncode == 2
    assert again.stderr == (
        f"error: output {tmp_path}/out already holds a finished dataset, but image.resize.mode was "
        '"center_crop" and is "none"; choose another --output, or pass --overwrite\n'
    )


def test_a_failed_build_exits_1_and_names_the_files_and_retry_finishes_it(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=3)
    (source / "dog" / "empty.png").write_bytes(b"")
    place = ("--source", str(source), "--output", str(tmp_path / "out"))
    done = run("build", *place)
    assert done.returncode == 1
    assert "error: 1 of 7 inputs were rejected (14.29%), max_reject_fraction allows 0.00%: 1 empty_file" in done.stderr
    assert "dog/empty.png: empty_file: file has no bytes" in done.stderr
    assert "give the same command again, or run it with --set max_reject_fraction=0.143 to allow" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    shutil.copy(source / "dog" / "001.jpg", source / "dog" / "empty.png")
    other = run("retry", *place, "--resize", "exact:8")
    assert other.returncode == 2
    assert other.stderr.startswith(
        f'error: image.resize.mode is "exact", but {tmp_path}/out was built with "none"; use'
    )
    done = run("retry", *place, "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    assert done.returncode == 0, done.stderr
    assert "7 listed = 7 written + 0 rejected + 0 duplicates" in done.stdout
    assert "processed now: 1 inputs, 1 written, 0 rejected" in done.stdout
    assert f"next:    python -m shards verify {tmp_path}/out" in done.stdout
    assert verify(tmp_path / "out") == []


def test_plan_prints_and_writes_nothing(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=30)
    config = tmp_path / "config.yaml"
    config.write_text(f"source: {{path: {source}}}\noutput: {tmp_path}/out\nshards: {{count: 2}}\n")
    done = run("plan", str(config))
    assert done.returncode == 0, done.stderr
    for text in ("train", "validation", "test", "total", "2 classes: cat (30), dog (30)", "nothing was written"):
        assert text in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build"], "error: the command line: output is required"),
        (["retry", *GOOD[1:]], "error: output o holds nothing to retry; build it first with `python -m pipelines"),
        (["retry", *GOOD[1:], "--overwrite"], "error: unknown option '--overwrite'; see --help; Beam's own options"),
        (["build", "no.yaml"], "error: cannot read config no.yaml: No such file or directory"),
        (["build", "--source", "nowhere", "--output", "o"], "error: source.path nowhere does not exist"),
        ([*GOOD, "--ouput", "x"], "error: unknown option '--ouput'; did you mean --output?"),
        ([*GOOD, "--resize", "huge"], "error: the command line: image.resize: Input should be 'none', 'exact'"),
        ([*GOOD, "--set", "shard.count=3"], "error: the command line: unknown key 'shard'; did you mean 'shards'?"),
        ([*GOOD, "--set", "oops"], "error: --set needs key=value, got 'oops'"),
    ],
)  # fmt: skip
def test_mistakes_exit_2_with_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_the_flags_override_the_config(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("source: {path: a}\noutput: b\nimage: {resize: exact:8}\n")
    parse = make_parser().parse_args
    plain = read_config(parse(["build", str(config)]))
    assert (plain.source.path, plain.output, plain.image.resize.size) == ("a", "b", 8)
    flags = ["--source", "x", "--output", "y", "--resize", "none", "--set", "output=z", "--set", "source.path=q"]
    changed = read_config(parse(["build", str(config), *flags]))
    assert (changed.source.path, changed.output, changed.image.resize.mode) == ("x", "y", "none")


@pytest.mark.parametrize("command", ["build", "plan", "retry"])
def test_help_is_complete_and_needs_no_beam(command):
    code = f"import runpy, sys; sys.modules['apache_beam'] = None; sys.argv = ['x', '{command}', '--help']; "
    code += "runpy.run_module('pipelines', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for word in ("--source", "--output", "--resize", "--set", "CONFIG", "--runner", "Exit codes", "pipelines retry"):
        assert word in done.stdout
    assert ("--overwrite" in done.stdout) == (command == "build")


def test_an_empty_source_is_refused(tmp_path, capsys):
    (tmp_path / "raw" / "cat").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"source.path .*/raw has no image files"):
        main(["build", "--source", f"{tmp_path}/raw", "--output", f"{tmp_path}/out"])


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configs_start_with_their_command(path):
    head = " ".join(path.read_text().splitlines()[:4])
    command = "trainer train" if path.name.startswith("train_") else "pipelines build"
    assert f"python -m {command} configs/{path.name}" in head
