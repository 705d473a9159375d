"""Decoder processes: where pictures are decoded, so that none of them can kill, hang or bloat a worker.

A worker keeps a few children and hands them tasks in small groups. A child that dies or does not answer in time is
replaced; what it had not answered is tried again, each task alone and up to twice, and a task that twice takes its
child along is refused. Children outlive the shard and the build: starting one takes longer than most pictures do.
"""

import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue

from pipelines.config import BuildConfig
from pipelines.process import Outcome, Refused, Task, process_input, read_input, refuse
from pipelines.reasons import Reason, RejectedImage
from pipelines.storage import is_remote
from pipelines.values import Fault

ATTEMPTS = 2
# A child answers when it has this much to say or this much time has passed, whatever comes first.
_ANSWER_BYTES, _ANSWER_SECONDS = 250_000, 0.25
_START_SECONDS = 120.0
_idle: SimpleQueue["Decoder"] = SimpleQueue()


class DecoderDied(Exception):
    """A child is gone: `reason` says whether it died or was too slow."""

    def __init__(self, reason: Reason, message: str) -> None:
        """The message ends up in the reject."""
        super().__init__(message)
        self.reason = reason


class DecoderPool:
    """`count` children, and a thread for each that talks with it."""

    def __init__(self, config: BuildConfig, count: int) -> None:
        """Children that an earlier pool of this process left are used again."""
        self._config, self.count = config, count
        self._decoders: SimpleQueue[Decoder] = SimpleQueue()
        for _ in range(count):
            self._decoders.put(_borrow())
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="decoder")

    def submit(self, tasks: Sequence[Task]) -> "Future[list[Outcome]]":
        """Processes tasks in one of the children."""
        return self._threads.submit(self._run, tasks)

    def _run(self, tasks: Sequence[Task]) -> list[Outcome]:
        decoder = self._decoders.get()
        try:
            return decoder.run([fetch(task, self._config) for task in tasks], self._config)
        finally:
            self._decoders.put(decoder)

    def close(self) -> None:
        """Leaves the children to the next pool."""
        self._threads.shutdown(cancel_futures=True)
        while not self._decoders.empty():
            _idle.put(self._decoders.get())


def _borrow() -> "Decoder":
    try:
        return _idle.get_nowait()
    except Empty:
        return Decoder()


def fetch(task: Task, config: BuildConfig) -> Task:
    """The task with the bytes of a remote input, which children cannot read."""
    ref = task.ref
    if ref.fault or not is_remote(ref.location.path):
        return task
    try:
        return replace(task, data=read_input(ref.location, config.image))
    except RejectedImage as reject:
        return replace(task, ref=ref._replace(fault=_fault(reject)))


def _fault(reject: RejectedImage) -> Fault:
    return Fault(reject.reason, reject.message)


class Decoder:
    """One child process and the line to it; starts it when needed."""

    def __init__(self) -> None:
        """Starts the child, which loads while the worker goes on."""
        self._told: BuildConfig | None = None
        self._start()

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._line: Connection[object, object] = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.decoders", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._told, self._ready = None, False

    def run(self, tasks: Sequence[Task], config: BuildConfig) -> list[Outcome]:
        """The outcomes of tasks, in their order, whatever the tasks do to the child."""
        outcomes: list[Outcome] = []
        try:
            for some in self._ask(tasks, config):
                outcomes += some
        except DecoderDied:
            outcomes += [self._run_alone(task, config) for task in tasks[len(outcomes) :]]
        return outcomes

    def _run_alone(self, task: Task, config: BuildConfig) -> Outcome:
        for _ in range(ATTEMPTS):
            try:
                return next(self._ask([task], config))[0]
            except DecoderDied as death:
                last = death
        return _refuse_dead(task, last, config)

    def _ask(self, tasks: Sequence[Task], config: BuildConfig) -> Iterator[list[Outcome]]:
        """Yields answers as they come; raises DecoderDied, with a new child in place, if they stop coming."""
        try:
            self._send(tasks, config)
            answered = 0
            while answered < len(tasks):
                if not self._line.poll(config.image.max_seconds + _ANSWER_SECONDS):
                    problem = f"decoding took more than {config.image.max_seconds:g} s (image.max_seconds)"
                    raise DecoderDied(Reason.TIMED_OUT, problem)
                outcomes = pickle.loads(self._line.recv_bytes())
                answered += len(outcomes)
                yield outcomes
        except (EOFError, OSError) as error:
            self._replace()
            code = self._last_code
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise DecoderDied(Reason.DECODER_CRASHED, f"the decoder's process ended {how}") from error
        except DecoderDied:
            self._replace()
            raise

    def _send(self, tasks: Sequence[Task], config: BuildConfig) -> None:
        if not self._ready:  # loading is not decoding: it has a time limit of its own
            if not self._line.poll(_START_SECONDS):
                raise EOFError
            self._line.recv_bytes()
            self._ready = True
        if self._told is not config:
            self._line.send_bytes(pickle.dumps(config))
            self._told = config
        self._line.send_bytes(pickle.dumps(tasks))

    def _replace(self) -> None:
        self._line.close()
        self._process.kill()
        self._last_code = self._process.wait()
        self._start()


def _refuse_dead(task: Task, death: DecoderDied, config: BuildConfig) -> Refused:
    """The refusal of a task that no child survived; its bytes are read here, where nothing decodes them."""
    try:
        data = read_input(task.ref.location, config.image) if task.data is None else task.data
    except RejectedImage:
        data = b""
    return refuse(death.reason, f"{death}, {ATTEMPTS} times", data, config)


def serve(line: "Connection[object, object]") -> None:
    """A child's life: tasks in, outcomes out, until the worker hangs up."""
    line.send_bytes(b"ready")
    config: BuildConfig | None = None
    while True:
        try:
            message = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        if isinstance(message, BuildConfig):
            config = message
            _limit_memory(config.image.max_memory_mb)
            continue
        assert config is not None, "the config comes first"
        _answer(line, message, config)


def _answer(line: "Connection[object, object]", tasks: Sequence[Task], config: BuildConfig) -> None:
    outcomes: list[Outcome] = []
    size, since = 0, time.monotonic()
    for task in tasks:
        outcomes.append(outcome := process_input(task, config))
        size += len(outcome.record) if not isinstance(outcome, Refused) else len(outcome.data)
        if size > _ANSWER_BYTES or time.monotonic() - since > _ANSWER_SECONDS:
            line.send_bytes(pickle.dumps(outcomes, 5))
            outcomes, size, since = [], 0, time.monotonic()
    if outcomes:
        line.send_bytes(pickle.dumps(outcomes, 5))


def _limit_memory(megabytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes * 1_000_000, hard))


def main() -> None:
    """Serves on the file descriptor given on the command line."""
    serve(Connection(int(sys.argv[1])))
    os._exit(0)  # nothing to clean up, and native libraries take their time


if __name__ == "__main__":
    main()
