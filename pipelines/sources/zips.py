"""The members of zip archives, read in place.

The directory at the archive's end is walked here as a stream: `zipfile` would hold all of it, about a kilobyte per
member. tests/test_sources_archives.py holds the walk against what `zipfile` writes.
"""

import stat
import struct
import zlib
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from pipelines.inputs.storage import open_binary
from pipelines.reasons import Reason
from pipelines.sources.members import DamagedArchive, Member, clean_name, name_problem
from pipelines.values import Fault, Location

_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_IN_EXTRA = 0xFFFFFFFF  # the true number is in the extra field
_ENCRYPTED, _UTF8 = 0x1, 0x800
_STORED, _DEFLATED = 0, 8
_CODINGS = {_STORED: "", _DEFLATED: "deflate"}
_WINDOWS, _UNIX = 0, 3


class _Directory(NamedTuple):
    start: int
    end: int
    entries: int
    shift: int  # how far everything lies behind where the archive says, if something was put before it


class _Entry(NamedTuple):
    name: str
    flags: int
    method: int
    packed: int
    unpacked: int
    offset: int
    mode: int  # as in stat; 0 if not known

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/") or stat.S_ISDIR(self.mode)


def zip_members(path: str) -> Iterator[Member]:
    """Every member but folders, in the directory's order; raises one of `DAMAGE` where the archive is broken."""
    with open_binary(path) as listing, open_binary(path) as stream:
        directory = _find_directory(listing)
        for entry in _entries(listing, directory):
            if not entry.is_folder:
                yield _member(entry, directory, stream, path)


def _find_directory(stream: BinaryIO) -> _Directory:
    stream.seek(0, 2)
    size = stream.tell()
    stream.seek(max(0, size - _LONGEST_COMMENT - _END.size - _LOCATOR64.size - _END64.size))
    base, tail = stream.tell(), stream.read()
    at = tail.rfind(b"PK\5\6")
    while at >= 0 and (len(tail) < at + _END.size or len(tail) != at + _END.size + _END.unpack_from(tail, at)[-1]):
        at = tail.rfind(b"PK\5\6", 0, at)  # these bytes may occur in the comment
    if at < 0:
        raise DamagedArchive("it has no zip directory at its end")
    *_, entries, length, offset, _ = _END.unpack_from(tail, at)
    end = at
    if (locator := at - _LOCATOR64.size) >= 0 and tail.startswith(b"PK\6\7", locator):
        end = locator - _END64.size
        if end < 0 or not tail.startswith(b"PK\6\6", end):
            raise DamagedArchive("its zip64 directory is not where it should be")
        *_, entries, length, offset = _END64.unpack_from(tail, end)
    start = base + end - length
    if start < offset:
        raise DamagedArchive("its directory is not where it should be")
    return _Directory(start, base + end, entries, start - offset)


def _entries(stream: BinaryIO, directory: _Directory) -> Iterator[_Entry]:
    stream.seek(directory.start)
    position, count = directory.start, 0
    while position < directory.end:
        fixed = stream.read(_ENTRY.size)
        if len(fixed) < _ENTRY.size or not fixed.startswith(b"PK\1\2"):
            raise DamagedArchive(f"its directory is broken after {count} members")
        name, extra, comment = (stream.read(length) for length in _ENTRY.unpack(fixed)[10:13])
        position += _ENTRY.size + len(name) + len(extra) + len(comment)
        count += 1
        yield _entry(fixed, name, extra)
    if count != directory.entries:
        raise DamagedArchive(f"its directory has {count} members and says {directory.entries}")


def _entry(fixed: bytes, name: bytes, extra: bytes) -> _Entry:
    _, made_by, _, flags, method, _, _, _, packed, unpacked, _, _, _, _, _, attributes, offset = _ENTRY.unpack(fixed)
    # The sizes that did not fit follow each other in the extra field, in this order.
    unpacked, packed, offset = _widen((unpacked, packed, offset), extra)
    system = made_by >> 8
    text = _decode(name, flags)
    return _Entry(
        name=text.replace("\\", "/") if system == _WINDOWS else text,
        flags=flags,
        method=method,
        packed=packed,
        unpacked=unpacked,
        offset=offset,
        mode=attributes >> 16 if system == _UNIX else 0,
    )


def _widen(numbers: tuple[int, int, int], extra: bytes) -> list[int]:
    wide = iter(_zip64_numbers(extra))
    try:
        return [next(wide) if number == _IN_EXTRA else number for number in numbers]
    except StopIteration as error:  # a generator would take it for its own end
        raise DamagedArchive("a member of more than 4 GB does not say how large it is") from error


def _zip64_numbers(extra: bytes) -> tuple[int, ...]:
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == 1:
            count = min(length, len(extra) - 4, 24) // 8
            return struct.unpack_from(f"<{count}Q", extra, 4)
        extra = extra[4 + length :]
    return ()


def _decode(name: bytes, flags: int) -> str:
    """UTF-8 where the archive says so or where it fits, else the code page of the first zip programs."""
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return name.decode("utf-8", "surrogateescape") if flags & _UTF8 else name.decode("cp437")


def _member(entry: _Entry, directory: _Directory, stream: BinaryIO, path: str) -> Member:
    problem = name_problem(entry.name) or _entry_problem(entry)
    fault = Fault(Reason.BAD_MEMBER, problem) if problem else None
    offset = _data_offset(entry, directory, stream)
    if offset < 0 and not fault:
        fault = Fault(Reason.UNREADABLE, "the archive is damaged: its bytes are not where the directory says")
    coding = _CODINGS.get(entry.method, "")
    location = Location(path, entry.packed, max(offset, 0), coding=coding, unpacked=entry.unpacked if coding else 0)
    name = entry.name if name_problem(entry.name) else clean_name(entry.name)
    return Member(name, location, partial(_read, stream, location), fault=fault)


def _entry_problem(entry: _Entry) -> str:
    if entry.flags & _ENCRYPTED:
        return "it is encrypted"
    if entry.method not in _CODINGS:
        return f"its compression method is {entry.method}; only stored and deflated members are read"
    kind = stat.S_IFMT(entry.mode)
    if kind == stat.S_IFLNK:
        return "it is a symbolic link; only regular files are read"
    return "" if kind in (0, stat.S_IFREG) else "it is a device or a pipe; only regular files are read"


def _data_offset(entry: _Entry, directory: _Directory, stream: BinaryIO) -> int:
    """Where a member's bytes begin, which only the header before them tells; -1 if they cannot be there."""
    header = directory.shift + entry.offset
    if header + _LOCAL.size > directory.start:
        return -1
    stream.seek(header)
    fixed = stream.read(_LOCAL.size)
    if len(fixed) < _LOCAL.size or not fixed.startswith(b"PK\3\4"):
        return -1
    *_, name, extra = _LOCAL.unpack(fixed)
    offset: int = header + _LOCAL.size + name + extra
    return offset if offset + entry.packed <= directory.start else -1


def _read(stream: BinaryIO, location: Location, limit: int) -> bytes:
    stream.seek(location.offset)
    if not location.coding:
        return stream.read(min(location.size, limit + 1))
    # Deflate gains nothing on noise, and then adds a few bytes per block.
    packed = stream.read(min(location.size, limit + limit // 1000 + 1000))
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, limit + 1)
