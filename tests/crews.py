"""Real workers for tests: started one by one as a cluster's, or under the supervisor, and done harm to."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from trainer_data import make_config

from trainer.running.cluster import tf_config
from trainer.running.workers import free_ports

# Runs the trainer in a process that does harm to itself when it comes to a certain function for the nth time.
SABOTEUR = """
import importlib, os, signal, sys, time
place, nth, harm, *arguments = sys.argv[1:]
from trainer.quiet import import_tensorflow
import_tensorflow()
module, _, attribute = place.partition(":")
*path, name = attribute.split(".")
owner = importlib.import_module(module)
for part in path:
    owner = getattr(owner, part)
real, calls = getattr(owner, name), []

def sabotaged(*values, **named):
    calls.append(1)
    if len(calls) == int(nth):
        print("sabotage", flush=True)
        os.kill(os.getpid(), getattr(signal, harm))
        time.sleep(1)
    return real(*values, **named)

setattr(owner, name, sabotaged)
from trainer.__main__ import _leave, main
_leave(main(arguments))
"""
# Runs the trainer with a shorter wait for the cluster to form.
HASTY = """
import sys
from trainer.quiet import import_tensorflow
import_tensorflow()
from trainer.running import peers
peers.FORMING_SECONDS = 5.0
from trainer.__main__ import _leave, main
_leave(main(sys.argv[1:]))
"""
PATIENCE = 120  # seconds; only a hang takes as long, even on a busy machine
Process = "subprocess.Popen[str]"


def write_config(path: Path, dataset: Path, output: Path, **values: Any) -> Path:
    """A config file for a small model."""
    small = {"global_batch": 8, "input": {"lanes": 4}, "model": {"arguments": {"width": 2}}, "log_every": 1}
    settings = make_config(dataset, output, **small | values).model_dump(mode="json")
    path.write_text(yaml.safe_dump(settings))
    return path


def start(*arguments: str, environment: dict[str, str] | None = None, prefix: Sequence[str] = ()) -> Any:
    """`python -m trainer ARGUMENTS`, its words in one pipe."""
    return _start([*prefix, sys.executable, "-m", "trainer", *arguments], environment)


def start_saboteur(place: str, nth: int, harm: str, *arguments: str, environment: dict[str, str]) -> Any:
    """The same, but with harm done to itself."""
    return _start([sys.executable, "-c", SABOTEUR, place, str(nth), harm, *arguments], environment)


def start_hasty(*arguments: str, environment: dict[str, str]) -> Any:
    """The same, but it does not wait long for the cluster to form."""
    return _start([sys.executable, "-c", HASTY, *arguments], environment)


def _start(command: list[str], environment: dict[str, str] | None) -> Any:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | (environment or {}),
    )


def cluster_environments(count: int) -> list[dict[str, str]]:
    """TF_CONFIG for each worker of a new cluster on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [{"TF_CONFIG": tf_config(addresses, index)} for index in range(count)]


def finish(process: Any, code: int = 0, *, patience: float = 2 * PATIENCE) -> str:
    """Everything a process says until its end, which must be with `code`."""
    try:
        text, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        raise AssertionError(f"still running after {patience:g} s:\n{text}") from None
    assert process.returncode == code, f"exit code {process.returncode}, not {code}:\n{text}"
    return str(text)


def end(*processes: Any) -> None:
    """Kills whoever still runs, frozen or not."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until(happened: Callable[[], Any], process: Any) -> Any:
    """Waits for something to come true while a process runs; returns what it was."""
    deadline = time.monotonic() + 2 * PATIENCE
    while not (found := happened()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"it did not happen; {process.communicate()[0]}\nended with {process.returncode}")
        time.sleep(0.05)
    return found


def metrics(output: Path, split: str = "train") -> list[dict[str, Any]]:
    """What metrics.jsonl says about a split; a line that is being written does not count."""
    path = output / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return [value for value in values if value["split"] == split]


def last_step(output: Path) -> int:
    """The last step that was reported."""
    return metrics(output)[-1]["step"] if metrics(output) else 0


def digest(text: str) -> str:
    """The last fingerprint of weights in what a worker said."""
    found = re.findall(r"weights +sha256 ([0-9a-f]{64})", text)
    assert found, text
    return str(found[-1])


def children(pid: int, *, count: int) -> list[int]:
    """The processes that a process has started, once there are so many."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + PATIENCE
    while len(found := path.read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(child) for child in found]


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits for its parent to take notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_death(pids: list[int]) -> None:
    """Waits until none of the processes is left."""
    deadline = time.monotonic() + PATIENCE
    while found := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > deadline:
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left behind: {found}")
        time.sleep(0.05)
