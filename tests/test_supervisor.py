"""The supervisor of local workers, with small programs in the place of the trainer: whom it restarts, and when not."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crews import alive, children, wait_until

from shards.errors import RestartMe, ShardsmithError, UsageError
from trainer.running import workers
from trainer.running.workers import newest_step, run_workers

Run = Callable[..., int]
# What every program below knows: which worker it is, which start this is, and how to leave a checkpoint.
PREFACE = """
import json, os, signal, sys, time
from pathlib import Path
task = json.loads(os.environ["TF_CONFIG"])
index, output = task["task"]["index"], Path({output!r})
marks = output / f"starts-{{index}}"
marks.mkdir(parents=True, exist_ok=True)
begun = len(list(marks.iterdir())) + 1
(marks / str(begun)).write_text(task["cluster"]["worker"][index])

def save(step):
    (output / "checkpoints" / f"step-{{step}}").mkdir(parents=True, exist_ok=True)

def die(number):
    os.kill(os.getpid(), number)
"""


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs two copies of a program under the supervisor."""
    monkeypatch.setattr(workers, "SETTLE_SECONDS", 10.0)
    monkeypatch.setattr(workers, "GRACE_SECONDS", 1.0)

    def run(program: str, **options: Any) -> int:
        script = tmp_path / "python"
        script.write_text(f"#!{sys.executable}\n{PREFACE.format(output=str(tmp_path / 'run'))}{program}")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return run_workers([], **{"count": 2, "output": tmp_path / "run"} | options)

    return run


def starts(tmp_path: Path, index: int) -> list[str]:
    """The address that a worker was given at each of its starts."""
    marks = tmp_path / "run" / f"starts-{index}"
    return [(marks / str(n)).read_text() for n in range(1, len(list(marks.iterdir())) + 1)]


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("time.sleep(0.1)", "worker 0 ended with exit code 75 (restart me)"),
        ("die(signal.SIGKILL)", "worker 1 was killed by SIGKILL"),
        ("os.abort()", "worker 1 was killed by SIGABRT"),
        ("die(signal.SIGSEGV)", "worker 1 was killed by SIGSEGV"),
    ],
)
def test_all_start_again_when_one_is_lost(
    harm: str, told: str, supervise: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"""
print("start", begun, flush=True)
if begun == 1:
    save(80)
    if index == 1:
        {harm}
    sys.exit(75)
"""
    assert supervise(program) == 0
    assert f"{told}; restart 1: all 2 workers start again from step 80\n" in capfd.readouterr().out
    addresses = [starts(tmp_path, index) for index in (0, 1)]
    assert [len(each) for each in addresses] == [2, 2]
    assert len({address for each in addresses for address in each}) == 4, "new ports at each start"
    assert (tmp_path / "run/logs/worker-1.log").read_text() == "start 1\nstart 2\n"


def test_a_frozen_worker_is_killed(supervise: Run, capfd: pytest.CaptureFixture[str]) -> None:
    program = """
if begun == 1 and index == 1:
    die(signal.SIGSTOP)
if begun == 1:
    sys.exit(75)
"""
    assert supervise(program) == 0
    told = "worker 1 did not end and was killed; restart 1: all 2 workers start again from the beginning\n"
    assert told in capfd.readouterr().out


@pytest.mark.parametrize(
    ("code", "failing", "kind", "message"),
    [
        (3, 0, ShardsmithError, "worker 0 ended with exit code 3; the others were stopped; its messages are above"),
        (1, 1, ShardsmithError, "worker 1 ended with exit code 1; the others were stopped; the end of .*:\n  it hurts"),
        (2, 1, UsageError, "worker 1 ended with exit code 2; the others were stopped; the end of .*:\n  it hurts"),
    ],
)
@pytest.mark.parametrize("other", ["time.sleep(600)", "sys.exit(75)"])
def test_an_error_of_one_stops_all_for_good(
    code: int, failing: int, kind: type[ShardsmithError], message: str, other: str, supervise: Run, tmp_path: Path
) -> None:
    program = f"""
if index != {failing}:
    {other}
time.sleep(0.5)
print("it hurts")
sys.exit({code})
"""
    with pytest.raises(ShardsmithError, match=message) as caught:
        supervise(program)
    assert type(caught.value) is kind
    assert len(starts(tmp_path, 0)) == 1


def test_gives_up_without_progress(supervise: Run, tmp_path: Path) -> None:
    program = """
print("no luck", begun, flush=True)
if index == 1:
    die(signal.SIGKILL)
"""
    with pytest.raises(ShardsmithError) as caught:
        supervise(program, max_restarts=2)
    assert str(caught.value) == (
        "worker 1 was killed by SIGKILL; SIGKILL may mean that memory ran out; "
        "gave up after 2 restart(s) without a new checkpoint: find the cause, or allow more with --max-restarts; "
        f"the end of {tmp_path}/run/logs/worker-1.log:\n  no luck 1\n  no luck 2\n  no luck 3"
    )
    assert not isinstance(caught.value, RestartMe)
    assert len(starts(tmp_path, 1)) == 3


def test_progress_permits_more_restarts(supervise: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = """
if begun <= 5:
    save(10 * begun)
    sys.exit(75)
"""
    assert supervise(program, max_restarts=1) == 0
    assert "restart 5: all 2 workers start again from step 50\n" in capfd.readouterr().out
    assert len(starts(tmp_path, 0)) == 6


def test_no_restart_when_none_is_wanted(supervise: Run, tmp_path: Path) -> None:
    with pytest.raises(ShardsmithError, match=r"gave up after 0 restart\(s\)"):
        supervise("sys.exit(75)", max_restarts=0)
    assert len(starts(tmp_path, 0)) == 1


SUPERVISOR = """
import sys
import numpy  # its threads take signals that the main one blocks
from pathlib import Path
from shards.errors import run
from trainer.running import workers
script, output, save_seconds = sys.argv[1:]
sys.executable = script
workers.SAVE_SECONDS = float(save_seconds)
sys.exit(run(lambda: workers.run_workers([], count=2, output=Path(output))))
"""
STUBBORN = """
signal.signal(signal.SIGTERM, lambda *_: (output / f"asked-{index}").touch())
(output / f"ready-{index}").touch()
while True:
    time.sleep(600)
"""
OBEDIENT = """
def leave(*_):
    save(7)
    os._exit(75)
signal.signal(signal.SIGTERM, leave)
(output / f"ready-{index}").touch()
while True:
    time.sleep(1)
"""


def start_supervisor(tmp_path: Path, program: str, *, save_seconds: float = 60.0) -> Any:
    script, output = tmp_path / "python", tmp_path / "run"
    script.write_text(f"#!{sys.executable}\n{PREFACE.format(output=str(output))}{program}")
    script.chmod(0o755)
    command = [sys.executable, "-c", SUPERVISOR, str(script), str(output), str(save_seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_request_to_stop_waits_for_the_save(number: int, code: int, tmp_path: Path) -> None:
    process = start_supervisor(tmp_path, OBEDIENT)
    wait_until(lambda: all((tmp_path / "run" / f"ready-{index}").exists() for index in (0, 1)), process)
    pids = children(process.pid, count=2)
    process.send_signal(number)
    text, _ = process.communicate(timeout=60)
    assert text == "error: stopped on request; the same command goes on from step 7\n"
    assert process.returncode == code
    assert not any(map(alive, pids))


@pytest.mark.parametrize("how", ["a second signal", "the time is over"])
def test_a_request_to_stop_ends_stubborn_workers(how: str, tmp_path: Path) -> None:
    process = start_supervisor(tmp_path, STUBBORN, save_seconds=600.0 if how == "a second signal" else 0.5)
    wait_until(lambda: all((tmp_path / "run" / f"ready-{index}").exists() for index in (0, 1)), process)
    pids = children(process.pid, count=2)
    process.send_signal(signal.SIGTERM)
    if how == "a second signal":
        wait_until(lambda: all((tmp_path / "run" / f"asked-{index}").exists() for index in (0, 1)), process)
        process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=60)
    assert text == (
        "error: stopped on request; worker 0 did not end and was killed; worker 1 did not end and was killed; "
        "the same command goes on from the beginning\n"
    )
    assert process.returncode == 75
    assert not any(map(alive, pids))


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.4, 0.8])
def test_a_request_at_any_moment_leaves_nobody_behind(delay: float, tmp_path: Path) -> None:
    process = start_supervisor(tmp_path, OBEDIENT, save_seconds=5.0)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (75, -signal.SIGTERM), "the latter before our code runs"
    marks = list((tmp_path / "run").glob("starts-*")) if (tmp_path / "run").exists() else []
    assert not [pid for pid in _programs(tmp_path) if alive(pid)], marks


def _programs(tmp_path: Path) -> list[int]:
    """The running processes of this test's program."""
    script, found = str(tmp_path / "python").encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if script in path.read_bytes().split(b"\0")[:2]:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_newest_step(tmp_path: Path) -> None:
    assert newest_step(tmp_path) is None
    for name in ("step-9", "step-10", "step-11.tmp", "best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest_step(tmp_path) == 10
