"""Decoder processes: where pictures are decoded, so that none of them can kill, hang or bloat a worker.

A worker keeps a few children (`decoder_process`) and hands them tasks in small groups. When a child dies, the
task that it was at is tried once more, alone and in a new child, and refused if it takes that one along too; the other
tasks of the group do not notice. Children outlive the shard and the build, for starting one takes half a second.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue
from typing import TypeVar

from pipelines.config import BuildConfig
from pipelines.decoding.decoder_process import EXIT_OUT_OF_MEMORY, read_place, write_place
from pipelines.decoding.jobs import Answer, Job
from pipelines.inputs.storage import is_remote
from pipelines.pictures.process import read_input
from pipelines.reasons import Reason, RejectedImage
from pipelines.values import Fault
from shards.errors import ShardsmithError

_START_SECONDS = 120.0
# A child ends itself when its time is over; one that cannot (it was stopped, say) is ended from here, this much later.
_GRACE_SECONDS = 10.0
# How long a child that hung up, or was hung up on, may take to be gone.
_REAP_SECONDS = 1.0
# One thread is enough for a decoder; the many of a large machine would count against its memory.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_idle: SimpleQueue["Decoder"] = SimpleQueue()
A = TypeVar("A", bound=Answer)
J = TypeVar("J", bound=Job[Answer])


class DecoderDied(Exception):
    """A child is gone: `reason` says of what, `place` which of the tasks it was at."""

    def __init__(self, reason: Reason, message: str, place: int) -> None:
        """The message ends up in the reject."""
        super().__init__(message)
        self.reason, self.place = reason, place


class DecoderPool:
    """`count` children, and the threads that talk with them."""

    def __init__(self, config: BuildConfig, count: int) -> None:
        """Children that an earlier pool of this process left are used again."""
        self._config, self.count = config, count
        self._decoders: SimpleQueue[Decoder] = SimpleQueue()
        for _ in range(count):
            self._decoders.put(_borrow())
        # Twice as many threads as children: while one waits for its child, another reads what is remote.
        self._threads = ThreadPoolExecutor(2 * count, thread_name_prefix="decoder")

    def submit(self, tasks: Sequence[Job[A]]) -> "Future[list[A]]":
        """Processes tasks in one of the children."""
        return self._threads.submit(self._run, tasks)

    def _run(self, tasks: Sequence[Job[A]]) -> list[A]:
        fetched = [fetch(task, self._config) for task in tasks]
        decoder = self._decoders.get()
        try:
            return decoder.run(fetched, self._config)
        finally:
            self._decoders.put(decoder)

    def close(self) -> None:
        """Waits for the tasks that run, drops those that do not, and leaves the children to the next pool."""
        self._threads.shutdown(cancel_futures=True)
        while not self._decoders.empty():
            _idle.put(self._decoders.get())


def start_ahead(count: int) -> None:
    """Starts children that load while the job is prepared; the first pool takes them."""
    for _ in range(count - _idle.qsize()):
        _idle.put(Decoder())


def _borrow() -> "Decoder":
    try:
        return _idle.get_nowait()
    except Empty:
        return Decoder()


def fetch(task: J, config: BuildConfig) -> J:
    """The task with the bytes of a remote input, which children cannot read."""
    ref = task.ref
    if ref.fault or not is_remote(ref.location.path):
        return task
    try:
        return replace(task, data=read_input(ref.location, config.image))
    except RejectedImage as reject:
        return replace(task, ref=ref._replace(fault=Fault(reject.reason, reject.message)))


class Decoder:
    """One child process and the line to it; a child that dies is replaced."""

    def __init__(self) -> None:
        """Starts the child, which loads while the worker goes on, and ends with it at the latest."""
        self._place = os.memfd_create("place")
        self._start()
        atexit.register(self.stop)

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.decoding.decoder_process", str(theirs.fileno()), str(self._place)],
            pass_fds=[theirs.fileno(), self._place],
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the worker; when it goes, the line breaks and the child goes too
        )
        theirs.close()
        self._line: Connection[object, object] = ours
        self._told: BuildConfig | None = None
        self._is_loaded = False

    def stop(self) -> None:
        """Ends the child at once."""
        self._process.kill()
        self._end()

    def run(self, tasks: Sequence[Job[A]], config: BuildConfig) -> list[A]:
        """The outcomes of tasks, in their order, whatever the tasks do to the child."""
        outcomes: list[A] = []
        try:
            self._ask(tasks, outcomes, config)
        except DecoderDied as death:
            outcomes += self.run(tasks[len(outcomes) : death.place], config)  # done, but the answers were lost
            outcomes.append(self._retry(tasks[death.place], config))
            outcomes += self.run(tasks[death.place + 1 :], config)
        return outcomes

    def _retry(self, task: Job[A], config: BuildConfig) -> A:
        outcomes: list[A] = []
        try:
            self._ask([task], outcomes, config)
        except DecoderDied as death:
            return self._refuse(task, Fault(death.reason, f"{death}, twice"), config)
        return outcomes[0]

    def _refuse(self, task: Job[A], verdict: Fault, config: BuildConfig) -> A:
        """The refusal of a task that no child survived; a child reads its bytes, for even that may hang."""
        outcomes: list[A] = []
        try:
            self._ask([replace(task, verdict=verdict)], outcomes, config)
        except DecoderDied:
            return task.refuse(*verdict)
        return outcomes[0]

    def _ask(self, tasks: Sequence[Job[A]], outcomes: list[A], config: BuildConfig) -> None:
        """Adds outcomes as they come; raises DecoderDied, with a new child in place, if they stop coming."""
        self._wait_until_loaded()
        wanted = len(outcomes) + len(tasks)
        try:
            self._send(tasks, config)
            while len(outcomes) < wanted:
                if not self._line.poll(config.image.max_seconds + _GRACE_SECONDS):
                    raise TimeoutError
                outcomes += pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            reason, message = _explain(error, self._end(), config)
            self._start()
            raise DecoderDied(reason, message, read_place(self._place)) from error

    def _wait_until_loaded(self) -> None:
        # Loading is not decoding: it has a time limit of its own, and if it fails, that is no picture's fault.
        try:
            if not self._is_loaded and not self._line.poll(_START_SECONDS):
                raise TimeoutError
            if not self._is_loaded:
                self._line.recv_bytes()
        except (EOFError, OSError) as error:
            code = self._end()
            problem = (
                f"a decoder process did not start (exit code {code}); is shardsmith installed for {sys.executable}?"
            )
            raise ShardsmithError(problem) from error
        self._is_loaded = True

    def _send(self, tasks: Sequence[Job[A]], config: BuildConfig) -> None:
        write_place(self._place, 0)
        if self._told is not config:
            self._line.send_bytes(pickle.dumps(config, pickle.HIGHEST_PROTOCOL))
            self._told = config
        self._line.send_bytes(pickle.dumps(tasks, pickle.HIGHEST_PROTOCOL))

    def _end(self) -> int:
        """Ends the child if it has not ended, and returns how it did: its exit code, or minus the signal."""
        self._line.close()
        try:
            return self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _explain(error: Exception, code: int, config: BuildConfig) -> tuple[Reason, str]:
    if code == -signal.SIGALRM or isinstance(error, TimeoutError):
        return Reason.TIMED_OUT, f"decoding took more than {config.image.max_seconds:g} s (image.max_seconds)"
    if code == EXIT_OUT_OF_MEMORY:
        return Reason.OUT_OF_MEMORY, f"decoding took more than {config.image.max_memory_mb} MB (image.max_memory_mb)"
    if code == -signal.SIGKILL:
        return Reason.OUT_OF_MEMORY, "the decoder's process was killed, probably by the system for lack of memory"
    how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
    return Reason.DECODER_CRASHED, f"the decoder's process ended {how}"
