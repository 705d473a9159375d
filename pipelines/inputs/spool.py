"""Spooling: what cannot be read at a random place is written, once and in order, to a file in which everything can.

Payloads are appended as they come, so a source of any size spools in the same memory. The refs lie beside the
payloads and get their name last: whoever asks for the same partition again (a retry, another stage) gets the same refs,
even from a function that would not give the same answer twice. A later run gets them too, if they are still true.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from pipelines.inputs.packing import pack_ref, unpack_ref
from pipelines.values import InputRef, Location
from shards.files import open_atomically

_NUMBER_BYTES, _SEAL_BYTES = 8, 16
_REFS = ".refs"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


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


def write_spool(path: Path, refs_of: Callable[[Spool], Iterable[InputRef]], *, stamp: int = 0) -> Iterator[InputRef]:
    """Spools a partition unless that has been done, and gives its refs from disk.

    `stamp` tells what was spooled: see `drop_stale`.
    """
    listed = path.with_suffix(_REFS)
    if not listed.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            refs = stack.enter_context(open_atomically(listed, durable=False))  # entered first, so named last
            data = stack.enter_context(open_atomically(path, durable=False))
            refs.write(_seal(stamp))
            for ref in refs_of(Spool(str(path), data)):
                packed = pack_ref(ref)
                refs.write(len(packed).to_bytes(_NUMBER_BYTES, "little") + packed)
    return _read_refs(listed)


def drop_stale(folder: Path, stamps: Mapping[int, int]) -> None:
    """Removes the spools of an interrupted run that are not of the partitions, by number, with these stamps."""
    for listed in folder.glob(f"*{_REFS}"):
        number = int(listed.stem)
        with listed.open("rb") as stream:
            is_fresh = number in stamps and stream.read(_SEAL_BYTES) == _seal(stamps[number])
        if not is_fresh:
            listed.unlink()


def _seal(stamp: int) -> bytes:
    """Changes with what is spooled, and when the machine starts: what was not yet on the disk may be lost then."""
    boot = _BOOT.read_text() if _BOOT.exists() else ""
    return hashlib.blake2b(f"{stamp} {boot}".encode(), digest_size=_SEAL_BYTES).digest()


def _read_refs(path: Path) -> Iterator[InputRef]:
    with path.open("rb") as stream:
        stream.seek(_SEAL_BYTES)
        while length := stream.read(_NUMBER_BYTES):
            yield unpack_ref(stream.read(int.from_bytes(length, "little")))
