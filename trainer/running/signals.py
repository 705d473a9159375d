"""SIGTERM and Ctrl-C while TensorFlow computes: heard by a thread of their own, told to the training steps.

Python runs signal handlers in the main thread between two of its instructions, and a stretch of training steps is one
instruction. So the C half of Python's handler, which runs at once, writes to a pipe, and the thread reads it.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from shards.errors import INTERRUPTED, RESTART, Interrupted, RestartMe

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_HUSH = 0  # no signal has this number


class Summons:
    """What a signal asks of this process: to end at once, or, once `attach` was called, to save first."""

    def __init__(self) -> None:
        """Hears nothing yet."""
        self.heard: signal.Signals | None = None
        self._leaving: Any = None
        self._turn = threading.Lock()
        self._ear, self._mouth = os.pipe()
        os.set_blocking(self._mouth, False)
        self._errors = os.dup(2)  # while TensorFlow is imported, stderr leads nowhere

    def attach(self, leaving: Any) -> None:
        """From now on the first signal sets the variable `leaving` to 1, which the training steps read."""
        self.install()  # again: TensorFlow has put a handler of its own for SIGTERM in its place
        with self._turn:
            self._leaving = leaving

    def install(self) -> None:
        """Takes the signals; in the main thread, as Python demands."""
        signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, _do_nothing)

    def hear(self) -> None:
        """Waits for signals, in a thread of its own, until `hush`."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for number in iter(lambda: os.read(self._ear, 1)[0], _HUSH):
            if number in SIGNALS:
                self._heed(signal.Signals(number))

    def hush(self) -> None:
        """Ends `hear`."""
        os.write(self._mouth, bytes([_HUSH]))
        os.close(self._errors)

    def _heed(self, number: signal.Signals) -> None:
        with self._turn:
            if self.heard:
                self._end(
                    number, "stopped at once by a second signal; the same command resumes from the last checkpoint"
                )
            if self._leaving is None:
                self._end(number, "stopped on request; there was nothing to save, and the same command starts again")
            self.heard = number
            self._leaving.assign(1.0)
        print(f"{number.name}: saving after this step; a second signal ends at once", flush=True)

    def _end(self, number: signal.Signals, text: str) -> NoReturn:
        with suppress(OSError):  # nobody may be listening any more
            os.write(self._errors, f"error: {text}\n".encode())
        os._exit(INTERRUPTED if number == signal.SIGINT else RESTART)


@contextmanager
def listening(*, supervisor: int | None = None) -> Iterator[Summons]:
    """Hears signals inside; must come before TensorFlow starts its threads. Dies with the process `supervisor`.

    After Ctrl-C a `RestartMe` becomes an `Interrupted`, which nobody restarts.
    """
    if supervisor:
        _die_with(supervisor)
    handlers, summons = [signal.getsignal(number) for number in SIGNALS], Summons()
    summons.install()
    # Threads of TensorFlow inherit this and are never interrupted; the listening one undoes it for itself.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=summons.hear, daemon=True, name="signals").start()
    try:
        yield summons
    except RestartMe as error:
        if summons.heard == signal.SIGINT:
            raise Interrupted(str(error)) from error
        raise
    finally:
        summons.hush()
        signal.set_wakeup_fd(-1)
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _do_nothing(*_: object) -> None:
    """The Python half of the handler: the pipe says it all."""


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies, however that happens."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(RESTART)
