"""Files that appear whole or not at all."""

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}\.tmp", re.DOTALL)
_before_naming: ContextVar[Callable[[], object] | None] = ContextVar("before_naming", default=None)


def is_temporary(name: str) -> bool:
    """Whether a file is called like one that has not got its name yet."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def naming_after(check: Callable[[], object]) -> Iterator[None]:
    """In this block files get their names only if `check` raises nothing, each time."""
    token = _before_naming.set(check)
    try:
        yield
    finally:
        _before_naming.reset(token)


@contextmanager
def open_atomically(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A stream whose content gets the name `path` when the block ends well, and leaves nothing behind when it does not.

    The temporary name is unique, so that two workers writing the same file (a retry, a speculative twin) cannot mix.
    What can be made again need not be `durable`, and is not waited for until it is on the disk.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())  # A name must never outlive a power cut that its content did not.
        if check := _before_naming.get():
            check()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a whole small file atomically."""
    with open_atomically(path) as stream:
        stream.write(data)


def hash_file(path: Path) -> str:
    """The sha256 of a file's content, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
