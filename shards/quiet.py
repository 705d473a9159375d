"""Keeps native start-up chatter out of a person's sight."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def muted_stderr() -> Iterator[None]:
    """Discards what is written to stderr's file descriptor; Python exceptions pass through.

    TensorFlow's libraries write to the descriptor itself while they load, before any log level can be set.
    """
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
