"""SIGTERM and Ctrl-C while TensorFlow computes: heard by a thread of their own, told to the training steps.

Python runs signal handlers in the main thread between two of its instructions, and a stretch of training steps is one
instruction. A thread that waits for the signals hears them at once.
"""

import os
import signal
import threading
from typing import Any

from shards.errors import RESTART

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(leaving: Any) -> None:
    """From now on the first signal sets the variable `leaving` to 1, and the second ends the process at once."""
    threading.Thread(target=_hear, args=(leaving,), daemon=True, name="signals").start()


def hold() -> None:
    """Keeps signals for `listen`; must come before TensorFlow starts its threads, which inherit this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _hear(leaving: Any) -> None:
    signal.sigwait(SIGNALS)
    leaving.assign(1.0)
    signal.sigwait(SIGNALS)
    os._exit(RESTART)
