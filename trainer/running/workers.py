"""Several real worker processes on one machine: a rehearsal of many machines with the same code and collectives."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shards.errors import ShardsmithError
from trainer.running.cluster import tf_config

LOGS = "logs"
LAST_LINES = 15
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Worker:
    """A started process; worker 0 speaks to the terminal and has no log."""

    index: int
    process: Any
    log: Path | None


def run_workers(arguments: Sequence[str], *, count: int, output: Path) -> int:
    """Runs `python -m trainer ARGUMENTS` as `count` workers on the loopback interface; 0 when all of them succeed."""
    logs = output / LOGS
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShardsmithError(f"output {output} cannot be written: {error.strerror}") from error
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    command = [sys.executable, "-m", "trainer", *arguments, "--threads", str(threads)]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    with ExitStack() as stack, _termination_as_interrupt():
        workers: list[Worker] = []
        stack.callback(_end_all, workers)
        for index in range(count):
            workers.append(_start(index, command, tf_config(addresses, index), None if index == 0 else logs))
        return _wait(workers)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now; all are held until the last is found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]


def _start(index: int, command: list[str], config: str, logs: Path | None) -> Worker:
    environment = os.environ | {"TF_CONFIG": config}
    if logs is None:
        return Worker(index, subprocess.Popen(command, env=environment), None)
    path = logs / f"worker-{index}.log"
    with path.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
        )
    return Worker(index, process, path)


def _wait(workers: list[Worker]) -> int:
    """Waits until all are done, or fails with the first that does not end well."""
    running = list(workers)
    while running:
        for worker in [w for w in running if w.process.poll() is not None]:
            if worker.process.returncode:
                raise ShardsmithError(_obituary(worker))
            running.remove(worker)
        time.sleep(POLL_SECONDS)
    return 0


def _obituary(worker: Worker) -> str:
    code = worker.process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    where = "its messages are above" if worker.log is None else f"the end of {worker.log}:\n{_tail(worker.log)}"
    return f"worker {worker.index} {how}; the others were stopped; {where}"


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (empty)"


def _end_all(workers: list[Worker]) -> None:
    """Ends whoever still runs: politely, then for certain."""
    alive = [worker for worker in workers if worker.process.poll() is None]
    for worker in alive:
        worker.process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in alive:
        try:
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """A SIGTERM (a container being stopped) ends the workers as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
