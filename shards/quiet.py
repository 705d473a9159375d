"""Keeps the chatter of native libraries and child processes out of a person's sight."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def captured_stderr(path: str | Path) -> Iterator[TextIO]:
    """Sends what is written to stderr's descriptor to a file; yields the real stderr for what a person should see.

    The descriptor, not `sys.stderr`: image libraries, TensorFlow and worker processes write to it directly, and no log
    level reaches them.
    """
    saved = os.dup(2)
    with open(path, "ab") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        with os.fdopen(os.dup(saved), "w", buffering=1) as terminal:
            yield terminal
    finally:
        os.dup2(saved, 2)
        os.close(saved)
