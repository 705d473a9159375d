"""Runs a command and measures its whole process tree: wall clock, CPU time and peak memory. Linux only.

CPU time is what the kernel adds up: `wait4` of the command covers every descendant that its own parent waited for, and
descendants that lost their parent come to us (we are their subreaper) and are waited for here. Memory is sampled.
"""

import ctypes
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import IO

from benchmarks.memory import PeakMemory, descendants
from shards.errors import ShardsmithError

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_SHOWN_LINES = 15

Watch = Callable[[], str]  # tells the name of the phase that the command is in


@dataclass(frozen=True)
class Run:
    """What one run of a command took, children included."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of each, as far as samples can tell


def measure(command: Sequence[str], *, watch: Watch = lambda: "") -> Run:
    """Runs a command from the project's root to its end; raises ShardsmithError with its last words if it fails."""
    with tempfile.TemporaryFile("w+") as log, _adopting_orphans():
        before = descendants()
        started = time.monotonic()
        process = _start(command, log)
        with _Sampler(watch, PeakMemory(before)) as sampler:
            code, cpu_seconds = _wait(process)
            ended = time.monotonic()
        cpu_seconds += _reap_orphans(process.pid)
        if code:
            raise ShardsmithError(f"{' '.join(command)} ended with exit code {code}:\n{_last_lines(log)}")
    return Run(ended - started, cpu_seconds, sampler.peak.bytes, phase_seconds(sampler.samples, ended))


def _start(command: Sequence[str], log: IO[str]) -> subprocess.Popen[bytes]:
    # A session of its own, so that everything the command starts can be ended with it.
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process the parent of descendants that lose theirs, so that their CPU time is not lost."""
    control = ctypes.CDLL(None).prctl
    control(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        control(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """The exit code, and the CPU seconds of the process and of all descendants that were waited for."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:  # Ctrl-C must not leave a build running.
        os.killpg(process.pid, SIGKILL)
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _reap_orphans(group: int) -> float:
    """Ends what the command left running, and returns the CPU seconds of what it left to us."""
    seconds = 0.0
    while True:
        try:
            os.killpg(group, SIGKILL)
        except ProcessLookupError:
            return seconds
        try:
            _, _, usage = os.wait4(-group, 0)
        except ChildProcessError:
            return seconds
        seconds += usage.ru_utime + usage.ru_stime


def _last_lines(log: IO[str]) -> str:
    log.seek(0)
    return "\n".join(log.read().splitlines()[-_SHOWN_LINES:])


class _Sampler(threading.Thread):
    """Notes the memory of the command's processes, and the phase that it is in, until the block ends."""

    def __init__(self, watch: Watch, peak: PeakMemory) -> None:
        super().__init__(daemon=True)
        self._watch, self._end = watch, threading.Event()
        self.peak, self.samples = peak, list[tuple[float, str]]()

    def __enter__(self) -> "_Sampler":
        self._sample()  # At least one, however short the command.
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        while not self._end.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self.samples.append((time.monotonic(), self._watch()))
        self.peak.update()


def phase_seconds(samples: Sequence[tuple[float, str]], ended: float) -> dict[str, float]:
    """Adds (time, phase) samples up; a phase lasts from its first sample to the next phase's."""
    seconds: dict[str, float] = {}
    ends = [at for at, _ in samples[1:]] + [ended]
    for (at, phase), end in zip(samples, ends, strict=True):
        # The last sample may have been taken just after the end.
        seconds[phase] = seconds.get(phase, 0.0) + max(0.0, min(end, ended) - at)
    return seconds
