"""Worker processes that die: Beam's local runner would wait for them without end."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.workspace.lock import Run
from shards.errors import ShardsmithError

_DEATH = re.compile(r"Worker subprocess exited with return code (-?\d+)")


@contextmanager
def noticing_dead_workers(run: Run) -> Iterator[None]:
    """Ends the job when a worker process dies, and says so; the other workers name no more files.

    The thread in which Beam waits for a worker ends with an exception, which nobody but this hook sees.
    """
    deaths: list[int] = []
    usual = threading.excepthook

    def notice(arguments: threading.ExceptHookArgs) -> None:
        if found := _DEATH.search(str(arguments.exc_value)):
            deaths.append(int(found[1]))
            run.end()
            os.kill(os.getpid(), signal.SIGINT)  # wakes the main thread, wherever it waits
        else:
            usual(arguments)

    threading.excepthook = notice
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not deaths:
            raise
        how = "was killed, probably for lack of memory" if deaths[0] in _KILLED else f"ended with code {deaths[0]}"
        remedy = "give the same command again, perhaps with fewer workers: it goes on"
        raise ShardsmithError(f"a worker process {how}; {remedy}") from interrupt
    finally:
        threading.excepthook = usual


_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # by itself, or as the shell that started it tells
