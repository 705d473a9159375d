"""One command at a time in an output, whatever becomes of the one before; with real processes."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import make_config

from pipelines.workspace.layout import BuildFolder, sweep_temporaries
from pipelines.workspace.lock import UNANNOUNCED, Holder, Run, announce, exclusive, hold
from shards.errors import ShardsmithError, UsageError
from shards.files import is_temporary, naming_after, open_atomically, write_atomically

ROOT = Path(__file__).parent.parent
HOLD = """
import subprocess, sys, time
from pathlib import Path
from pipelines.workspace.lock import announce, hold
with hold(Path(sys.argv[1]), "build"):
    announce(Path(sys.argv[1]))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_holder(root: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the directory and has a child; both end with the block."""
    command = [sys.executable, "-c", HOLD, str(root)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


def test_the_second_command_stops_at_once_and_says_who_is_there(tmp_path):
    with another_holder(tmp_path) as (process, _), pytest.raises(ShardsmithError) as caught, hold(tmp_path, "append"):
        pass
    said = str(caught.value)
    assert said.startswith(
        f"output {tmp_path} is held by build, process {process.pid} on {socket.gethostname()}, since "
    )
    assert said.endswith("Z; wait for it, or choose another --output")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("command", ["build", "append", "retry"])
def test_on_the_command_line_too_even_before_beam_is_loaded(command, tmp_path):
    program = (
        "import sys; sys.modules['apache_beam'] = None; from shards.errors import run; "
        "from pipelines.__main__ import main; sys.exit(run(lambda: main(sys.argv[1:])))"
    )
    (tmp_path / "raw").mkdir()
    with another_holder(tmp_path / "out") as (process, _):
        arguments = [command, "--source", str(tmp_path / "raw"), "--output", str(tmp_path / "out")]
        line = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: output {tmp_path}/out is held by build, process {process.pid} on ")
    assert done.stderr.count("\n") == 1


def test_a_holder_who_has_not_said_so_yet_is_not_taken_for_a_dead_one(tmp_path):
    with another_holder(tmp_path):
        holder = BuildFolder(tmp_path).holder
        dead = subprocess.Popen(["true"])
        dead.wait()
        holder.write_text(json.dumps(json.loads(holder.read_text()) | {"pid": dead.pid}))
        with pytest.raises(ShardsmithError, match="is held by a command that has only just begun"), hold(tmp_path, "x"):
            pass


def test_a_killed_holder_is_no_holder_even_if_its_child_lives(tmp_path, capsys):
    with another_holder(tmp_path) as (process, child):
        (tmp_path / ".a.json.0123456789abcdef0123456789abcdef.tmp").write_bytes(b"half")
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is there
        with hold(tmp_path, "append"):
            announce(tmp_path)
            assert Holder.load(BuildFolder(tmp_path).holder).pid == os.getpid()
    said = capsys.readouterr().err
    assert said.startswith(f"taking over from a run that ended early: build, process {process.pid} on ")
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".build"]


def test_a_holder_that_ends_well_is_not_spoken_of(tmp_path, capsys):
    for _ in range(2):
        with hold(tmp_path / "out", "build"):
            announce(tmp_path / "out")
    assert capsys.readouterr() == ("", "")


def test_nothing_is_left_unless_something_was_begun(tmp_path):
    with pytest.raises(UsageError, match="no such source"), hold(tmp_path / "a" / "out", "build"):
        raise UsageError("no such source")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    before = (tmp_path / "old").stat().st_mtime_ns
    with hold(tmp_path / "old", "build"):
        pass
    assert (tmp_path / "old").stat().st_mtime_ns == before
    assert list((tmp_path / "old").iterdir()) == []


def test_outputs_that_cannot_be_held_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError) as caught, hold(tmp_path / "file", "build"):
        pass
    assert str(caught.value) == f"output {tmp_path}/file is a file; choose a directory"
    with pytest.raises(UsageError) as caught, hold(tmp_path / "file" / "out", "build"):
        pass
    assert str(caught.value) == f"output {tmp_path}/file/out is a file; choose a directory"
    with pytest.raises(ShardsmithError) as caught, hold(Path("/proc/nothing"), "build"):
        pass
    assert str(caught.value) == (
        "output /proc/nothing cannot be written: No such file or directory; choose another --output"
    )


def test_a_command_inside_of_another_shares_its_hold(tmp_path):
    @exclusive
    def inner(config):
        announce(Path(config.output))
        return json.loads((tmp_path / ".build" / "holder.json").read_text())["command"]

    @exclusive
    def retry(config):
        with pytest.raises(BlockingIOError):
            fcntl.flock(os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return inner(config)

    assert retry(make_config("raw", tmp_path)) == "retry"
    assert not BuildFolder(tmp_path).holder.exists()


@pytest.fixture
def without_locks(monkeypatch):
    """A filesystem that has no locks, as some network mounts have none."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_a_living_process_is_believed(tmp_path, without_locks):
    with another_holder(tmp_path) as (process, _):
        with pytest.raises(ShardsmithError) as caught, hold(tmp_path, "build"):
            pass
        assert f"is held by build, process {process.pid} on " in str(caught.value)
        assert str(caught.value).endswith(f"if that process is gone, delete {tmp_path}/.build/holder.json")
        process.kill()
        process.wait()
        with hold(tmp_path, "build"):
            announce(tmp_path)


def test_without_locks_a_number_that_another_process_has_now_is_not_believed(tmp_path, without_locks, capsys):
    here = Holder.here("build")
    BuildFolder(tmp_path).work.mkdir()
    holder = BuildFolder(tmp_path).holder
    holder.write_text(json.dumps(asdict(here)))
    with pytest.raises(ShardsmithError), hold(tmp_path, "build"):
        pass
    holder.write_text(json.dumps(asdict(replace(here, born="1"))))
    with hold(tmp_path, "build"):
        announce(tmp_path)
    assert "taking over" in capsys.readouterr().err


def test_without_locks_another_machine_is_always_believed(tmp_path, without_locks):
    BuildFolder(tmp_path).work.mkdir()
    there = replace(Holder.here("build"), host="elsewhere", pid=1, started="2026-01-31T12:00:00Z")
    BuildFolder(tmp_path).holder.write_text(json.dumps(asdict(there)))
    with pytest.raises(ShardsmithError) as caught, hold(tmp_path, "build"):
        pass
    assert str(caught.value) == (
        f"output {tmp_path} is held by build, process 1 on elsewhere, since 2026-01-31T12:00:00Z; wait for it, or "
        f"choose another --output; if that process is gone, delete {tmp_path}/.build/holder.json"
    )


def test_a_worker_of_an_ended_run_gives_no_names(tmp_path):
    """Whenever the next run begins: a temporary file is swept, or finds that its run has ended."""
    with hold(tmp_path, "build"):
        announce(tmp_path)
        old = Run.find(tmp_path)
        with naming_after(old.check):
            write_atomically(tmp_path / "in_time", b"x")
    stream = naming = None
    with hold(tmp_path, "append"):
        with pytest.raises(ShardsmithError, match="run has ended"), naming_after(old.check):  # not announced yet
            write_atomically(tmp_path / "late", b"x")
        naming = open_atomically(tmp_path / "late")
        stream = naming.__enter__()
        stream.write(b"x")
        announce(tmp_path)
        with pytest.raises(FileNotFoundError):  # as if it had looked just before
            naming.__exit__(None, None, None)
        with pytest.raises(ShardsmithError) as caught, naming_after(old.check):
            write_atomically(tmp_path / "late", b"x")
        assert str(caught.value).startswith(f"this worker's run has ended: {tmp_path} is now held by append, process ")
        Run.find(tmp_path).check()
        Run.find(tmp_path / ".build" / "next").check()
        assert Run.find(tmp_path / ".build" / "next") == Run.find(tmp_path) != old
    assert sorted(path.name for path in tmp_path.iterdir()) == [".build", "in_time"]


def test_a_run_whose_output_is_gone_is_told_so(tmp_path):
    with hold(tmp_path / "out", "build"):
        announce(tmp_path / "out")
        run = Run.find(tmp_path / "out")
        (tmp_path / "out").rename(tmp_path / "away")
        with pytest.raises(ShardsmithError) as caught:
            run.check()
    assert str(caught.value) == (
        f"output {tmp_path}/out is gone; bring it back and give the same command again: it goes on"
    )


def test_without_a_hold_nothing_is_checked(tmp_path):
    found = Run.find(tmp_path)
    assert found == UNANNOUNCED
    found.check()


def test_only_temporary_files_are_swept(tmp_path):
    with open_atomically(tmp_path / "kept"):
        (temporary,) = tmp_path.iterdir()
        assert is_temporary(temporary.name)
    names = ["a.tmp", ".a.tmp", ".a.b.tmp", f".a.{'0' * 32}", f"a.{'0' * 32}.tmp", f".a\n.{'f' * 32}.tmp"]
    (tmp_path / "train").mkdir()
    for name in names:
        (tmp_path / "train" / name).write_bytes(b"")
    (tmp_path / f".folder.{'0' * 32}.tmp").mkdir()
    sweep_temporaries(tmp_path)
    assert (tmp_path / "kept").exists()
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == sorted(names[:-1])
