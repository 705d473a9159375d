"""The members of tar archives: in place if the archive is uncompressed, else as a stream that is read once."""

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, BinaryIO

from pipelines.inputs.storage import open_binary
from pipelines.reasons import Reason
from pipelines.sources.members import DamagedArchive, Member, clean_name, name_problem
from pipelines.values import Fault, Location

_OPENERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_EXTENDED_HEADERS = (*tarfile.GNU_TYPES[:2], tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LARGEST_HEADER = 1_000_000
_CHUNK = 1_000_000


class _Header(tarfile.TarInfo):
    """A header that tells damage from the end of the archive, where tarfile's own would end both in silence."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            place = f"at byte {tarfile_.offset}"
            empty = isinstance(error, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]
            raise DamagedArchive(f"it has no end mark {place}" if empty else f"{error} {place}") from error

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        # tarfile would read a header of any size into memory, and go back for a negative one.
        if header.size < 0 or (header.type in _EXTENDED_HEADERS and header.size > _LARGEST_HEADER):
            raise DamagedArchive(f"a header says that it has {header.size} bytes")
        return header


def tar_members(path: str) -> Iterator[Member]:
    """Every member but folders, in the archive's order; raises one of `DAMAGE` where the archive is broken."""
    with ExitStack() as stack:
        stream = stack.enter_context(open_binary(path))
        opener = _opener(stream)
        plain = stack.enter_context(opener(stream)) if opener else stream
        size = None if opener else _size(stream)
        archive = stack.enter_context(_open(plain, streamed=opener is not None))
        while (header := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
            stored = header.isreg() and not header.issparse()
            if size is not None and stored and header.offset_data + header.size > size:
                raise DamagedArchive(f"it ends inside of {header.name!r}")
            if not header.isdir():
                yield _member(header, archive, path, in_place=opener is None)
        while opener and plain.read(_CHUNK):  # to the end, where the compression's own checksum is
            pass


def _opener(stream: BinaryIO) -> Callable[[Any], Any] | None:
    start = stream.read(6)
    stream.seek(0)
    return next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)


def _size(stream: BinaryIO) -> int:
    size = stream.seek(0, 2) or stream.tell()
    stream.seek(0)
    return size


def _open(stream: Any, *, streamed: bool) -> tarfile.TarFile:
    return tarfile.open(
        fileobj=stream,
        mode="r|" if streamed else "r:",
        tarinfo=_Header,
        encoding="utf-8",
        errors="surrogateescape",
    )


def _member(header: tarfile.TarInfo, archive: tarfile.TarFile, path: str, *, in_place: bool) -> Member:
    problem = name_problem(header.name) or _type_problem(header)
    name = header.name if name_problem(header.name) else clean_name(header.name)
    location = Location(path, header.size, header.offset_data)
    fault = Fault(Reason.BAD_MEMBER, problem) if problem else None
    return Member(name, location, partial(_read, archive, header), in_place, fault)


def _type_problem(header: tarfile.TarInfo) -> str:
    if header.issym():
        return f"it is a symbolic link to {header.linkname!r}; only regular files are read"
    if header.islnk():
        return f"it is a hard link to {header.linkname!r}; only regular files are read"
    if header.issparse():
        return "it is a sparse file, which is not stored in one piece"
    return "" if header.isreg() else "it is a device or a pipe; only regular files are read"


def _read(archive: tarfile.TarFile, header: tarfile.TarInfo, limit: int) -> bytes:
    stream = archive.extractfile(header)
    assert stream is not None, "asked only of regular files"
    data = stream.read(min(limit + 1, header.size))
    if len(data) < min(limit + 1, header.size):
        raise DamagedArchive(f"it ends inside of {header.name!r}")
    return data
