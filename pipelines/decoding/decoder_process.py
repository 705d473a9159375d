"""A child of `decoders`: tasks in, outcomes out, within limits of time and memory that it sets for itself."""

import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

import pipelines.decoding.glance  # noqa: F401  (the jobs and their libraries load before time and memory count)
from pipelines.config import BuildConfig
from pipelines.decoding.jobs import Answer, Job
from pipelines.reasons import Reason

EXIT_OUT_OF_MEMORY = 3
# A child answers when it has this much to say or this much time has passed, whatever comes first.
_ANSWER_BYTES, _ANSWER_SECONDS = 250_000, 0.25


def write_place(descriptor: int, place: int) -> None:
    """Leaves the number of the task at hand where the worker finds it, whatever becomes of the child."""
    os.pwrite(descriptor, place.to_bytes(4, "little"), 0)


def read_place(descriptor: int) -> int:
    """The number of the task at which a child was last."""
    return int.from_bytes(os.pread(descriptor, 4, 0), "little")


def serve(line: "Connection[object, object]", place: int) -> None:
    """A child's life, until the worker hangs up."""
    own = _data_bytes()
    line.send_bytes(b"loaded")
    config: BuildConfig | None = None
    while True:
        try:
            message = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        if isinstance(message, BuildConfig):
            config = message
            _limit_memory(own + config.image.max_memory_mb * 1_000_000)
        else:
            assert config is not None, "the config comes first"
            _answer(line, place, message, config)


def _answer(line: "Connection[object, object]", place: int, tasks: Sequence[Job[Answer]], config: BuildConfig) -> None:
    outcomes: list[Answer] = []
    size, since = 0, time.monotonic()
    for number, task in enumerate(tasks):
        write_place(place, number)
        # Nobody handles this signal, so that it ends the process even inside of native code.
        signal.setitimer(signal.ITIMER_REAL, config.image.max_seconds)
        outcomes.append(outcome := _process(task, config))
        signal.setitimer(signal.ITIMER_REAL, 0)
        size += outcome.weight
        if size > _ANSWER_BYTES or time.monotonic() - since > _ANSWER_SECONDS or number == len(tasks) - 1:
            line.send_bytes(pickle.dumps(outcomes, pickle.HIGHEST_PROTOCOL))
            outcomes, size, since = [], 0, time.monotonic()


def _process(task: Job[Answer], config: BuildConfig) -> Answer:
    try:
        return task.perform(config)
    except MemoryError:  # a new child, whose memory no other picture has used, decides whether it is enough
        raise
    except Exception as error:  # a bug of ours, told in full in the log; it costs one input, not the build
        traceback.print_exc()
        return task.refuse(Reason.DECODER_CRASHED, f"unexpected {type(error).__name__}: {error}")


def _data_bytes() -> int:
    """The memory that counts for RLIMIT_DATA, as the process has it now."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[5]) * resource.getpagesize()


def _limit_memory(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard < 0 else min(size, hard), hard))


def main() -> None:
    """Serves on the file descriptors given on the command line."""
    line, place = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected here, and its core helps nobody
    try:
        serve(Connection(line), place)
    except MemoryError:
        os._exit(EXIT_OUT_OF_MEMORY)
    os._exit(0)  # nothing to clean up, and native libraries take their time


if __name__ == "__main__":
    main()
