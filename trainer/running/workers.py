"""Several real worker processes on one machine, and the supervisor that starts all of them again when one is lost.

Signals are only noted when they come and heeded between two looks at the workers, so that none can come between the
start of a process and its being known here.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shards.errors import BAD_USAGE, DONE, INTERRUPTED, RESTART, Interrupted, RestartMe, ShardsmithError, UsageError
from trainer.learning.saved import list_checkpoints
from trainer.running.cluster import tf_config
from trainer.running.signals import SIGNALS

LOGS = "logs"
LAST_LINES = 15
MAX_RESTARTS = 3
GRACE_SECONDS = 5.0  # for the others after an error that no restart mends
SETTLE_SECONDS = 15.0  # for the others to notice by themselves that one is gone
SAVE_SECONDS = 300.0  # for a checkpoint after a request to stop
POLL_SECONDS = 0.1
Heard = list[int]
PASSING = (RESTART, INTERRUPTED)  # exit codes of a worker that would go on if started again


@dataclass(frozen=True)
class Worker:
    """A started process; worker 0 speaks to the terminal and has no log."""

    index: int
    process: Any
    log: Path | None

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code: int | None = self.process.poll()
        return code


@dataclass
class Crew:
    """All workers between one start and their end; `stuck` are those that had to be killed."""

    workers: list[Worker] = field(default_factory=list)
    stuck: list[Worker] = field(default_factory=list)

    def running(self) -> list[Worker]:
        """The workers that have not ended."""
        return [worker for worker in self.workers if worker.code is None]

    def failed(self) -> Worker | None:
        """The first worker with an error that a restart would only repeat."""
        return next((each for each in self.workers if (each.code or 0) > 0 and each.code not in PASSING), None)

    def lost(self) -> Worker | None:
        """The worker to blame for the end of all: one that died, else one that hung, else one that left."""
        ended = [worker for worker in self.workers if worker.code and worker not in self.stuck]
        died = [worker for worker in ended if (worker.code or 0) < 0]
        return next(iter([*died, *self.stuck, *ended]), None)

    def patience(self, *, asked: bool) -> float:
        """How many seconds those that run may go on; less than for ever if they were asked to end."""
        if self.failed():
            return GRACE_SECONDS
        if len(self.running()) < len(self.workers):
            return SETTLE_SECONDS
        return SAVE_SECONDS if asked else float("inf")


def run_workers(arguments: Sequence[str], *, count: int, output: Path, max_restarts: int = MAX_RESTARTS) -> int:
    """Runs `python -m trainer ARGUMENTS` as `count` workers on the loopback interface until all of them succeed."""
    logs = output / LOGS
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShardsmithError(f"output {output} cannot be written: {error.strerror}") from error
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    own = ["--threads", str(threads), "--supervisor", str(os.getpid())]
    command = [sys.executable, "-m", "trainer", *arguments, *own]
    with _noted_signals() as heard:
        return _keep_running(command, heard, count=count, output=output, most=max_restarts)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now; all are held until the last is found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]


def newest_step(output: Path) -> int | None:
    """The step of the newest checkpoint of a run."""
    found = list_checkpoints(output)
    return found[0][0] if found else None


def _keep_running(command: list[str], heard: Heard, *, count: int, output: Path, most: int) -> int:
    """Starts the workers again whenever they were lost, as long as that leads anywhere."""
    restarts, total = 0, 0
    while True:
        before = newest_step(output)
        crew = _run_once(command, heard, count=count, logs=output / LOGS)
        if failed := crew.failed():
            kind = UsageError if failed.code == BAD_USAGE else ShardsmithError
            raise kind(f"{_how(crew, failed)}; the others were stopped; {_where_it_says_more(failed)}")
        lost, step = crew.lost(), newest_step(output)
        if lost is None:
            return DONE
        if heard:
            raise _stopped(crew, heard[0], step)
        restarts, total = (restarts if step == before else 0) + 1, total + 1
        if restarts > most:
            raise _gave_up(crew, lost, restarts=most)
        print(f"{_how(crew, lost)}; restart {total}: all {count} workers start again {_from(step)}", flush=True)


def _run_once(command: list[str], heard: Heard, *, count: int, logs: Path) -> Crew:
    """Starts all and comes back when all have ended, by themselves or by force."""
    crew = Crew()
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    try:
        for index in range(count):
            crew.workers.append(_start(index, command, tf_config(addresses, index), None if index == 0 else logs))
        _watch(crew, heard)
    finally:
        for worker in crew.workers:
            if worker.code is None:
                crew.stuck.append(worker)
                worker.process.kill()
                worker.process.wait()
    return crew


def _start(index: int, command: list[str], config: str, logs: Path | None) -> Worker:
    """Starts one in a session of its own: Ctrl-C at the terminal is for the supervisor, which passes it on once."""
    options: dict[str, Any] = {
        "env": os.environ | {"TF_CONFIG": config},
        "stdin": subprocess.DEVNULL,
        "start_new_session": True,
    }
    if logs is None:
        return Worker(index, subprocess.Popen(command, **options), None)
    path = logs / f"worker-{index}.log"
    with path.open("ab") as stream:
        return Worker(index, subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, **options), path)


def _watch(crew: Crew, heard: Heard) -> None:
    """Waits for the end of all, but not for ever once one has ended or a signal came; a second signal is final."""
    deadline, asked = float("inf"), False
    while crew.running() and time.monotonic() < deadline and len(heard) < 2:
        if heard and not asked:
            asked = True
            for worker in crew.running():
                worker.process.terminate()
        deadline = min(deadline, time.monotonic() + crew.patience(asked=asked))
        time.sleep(POLL_SECONDS)


def _how(crew: Crew, worker: Worker) -> str:
    if worker in crew.stuck:
        return f"worker {worker.index} did not end and was killed"
    code = worker.process.returncode
    if code < 0:
        return f"worker {worker.index} was killed by {signal.Signals(-code).name}"
    reason = " (restart me)" if code == RESTART else ""
    return f"worker {worker.index} ended with exit code {code}{reason}"


def _where_it_says_more(worker: Worker) -> str:
    if worker.log is None:
        return "its messages are above"
    lines = worker.log.read_text(encoding="utf-8", errors="replace").splitlines()
    tail = "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (empty)"
    return f"the end of {worker.log}:\n{tail}"


def _from(step: int | None) -> str:
    return "from the beginning" if step is None else f"from step {step}"


def _stopped(crew: Crew, number: int, step: int | None) -> ShardsmithError:
    kind = Interrupted if number == signal.SIGINT else RestartMe
    killed = "".join(f"; {_how(crew, worker)}" for worker in crew.stuck)
    return kind(f"stopped on request{killed}; the same command goes on {_from(step)}")


def _gave_up(crew: Crew, lost: Worker, *, restarts: int) -> ShardsmithError:
    memory = "; SIGKILL may mean that memory ran out" if lost.code == -signal.SIGKILL else ""
    return ShardsmithError(
        f"{_how(crew, lost)}{memory if lost not in crew.stuck else ''}; gave up after {restarts} restart(s) without a "
        f"new checkpoint: find the cause, or allow more with --max-restarts; {_where_it_says_more(lost)}"
    )


@contextmanager
def _noted_signals() -> Iterator[Heard]:
    """The signals that have come inside, none of which interrupts anything."""
    heard: Heard = []
    previous = [signal.signal(number, lambda number, _: heard.append(number)) for number in SIGNALS]
    try:
        yield heard
    finally:
        for number, handler in zip(SIGNALS, previous, strict=True):
            signal.signal(number, handler)
