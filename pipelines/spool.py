"""Spooling: what cannot be read at a random place is written, once and in order, to a file in which everything can.

Payloads are appended as they come, so a source of any size spools in the same memory. The refs lie beside the
payloads and get their name last: whoever asks for the same partition again (a retry, another stage) gets the same refs,
even from a function that would not give the same answer twice.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from pipelines.coders import InputRefCoder
from pipelines.values import InputRef, Location
from shards.files import open_atomically

_CODER = InputRefCoder()
_LENGTH_BYTES = 8


class Spool:
    """Takes payloads and tells where they lie; without a stream it only counts (for a dry run)."""

    def __init__(self, path: str, stream: BinaryIO | None) -> None:
        """`path` is the name that the stream's content will have."""
        self._path, self._stream, self._end = path, stream, 0

    @property
    def is_dry(self) -> bool:
        """Whether payloads are only counted: nobody will read them, so they need not be made."""
        return self._stream is None

    @property
    def folder(self) -> str | None:
        """Where there is room for a scratch file; None: wherever the system has its own."""
        return os.path.dirname(self._path) or None

    def add(self, data: bytes | bytearray | memoryview, *, form: str = "") -> Location:
        """Appends one payload."""
        size = memoryview(data).nbytes  # the length of an array's memory is its first side
        if self._stream:
            self._stream.write(data)
        content = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") if self._stream else 0
        location = Location(self._path, size, self._end, form=form, content=content)
        self._end += size
        return location


def spool_path(folder: Path, number: int) -> Path:
    """Where a partition's payloads go."""
    return folder / f"{number:06d}.bin"


def write_spool(path: Path, refs_of: Callable[[Spool], Iterable[InputRef]]) -> Iterator[InputRef]:
    """Spools a partition unless that has been done, and yields its refs from disk."""
    listed = path.with_suffix(".refs")
    if not listed.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            refs = stack.enter_context(open_atomically(listed, durable=False))  # entered first, so named last
            data = stack.enter_context(open_atomically(path, durable=False))
            for ref in refs_of(Spool(str(path), data)):
                encoded = _CODER.encode(ref)
                refs.write(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
    yield from _read_refs(listed)


def _read_refs(path: Path) -> Iterator[InputRef]:
    with path.open("rb") as stream:
        while length := stream.read(_LENGTH_BYTES):
            yield _CODER.decode(stream.read(int.from_bytes(length, "little")))
