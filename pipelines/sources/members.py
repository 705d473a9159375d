"""What tar and zip archives have in common: members by name and place, and names that may not lead out of them."""

import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pipelines.reasons import Reason
from pipelines.values import Fault, Location

_DRIVE = re.compile(r"[A-Za-z]:")


class DamagedArchive(Exception):
    """The archive's own structure is broken; the message says how."""


# Everything that reading a broken archive, or a broken compression around it, can raise.
DAMAGE = (DamagedArchive, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)


class Member(NamedTuple):
    """A file in an archive, or with a fault what stands in the place of one. Folders are no members.

    `read(limit)` gives its bytes, at most one more than the limit, and only until the next member is asked for. A
    member that is not `in_place` lies in a compressed stream and must be copied to be read later. The damage that ends
    an archive comes as a last member without a name.
    """

    name: str
    location: Location
    read: Callable[[int], bytes]
    in_place: bool = True
    fault: Fault | None = None


def read_nothing(limit: int) -> bytes:
    """The content of a member that has none."""
    return b""


def until_damage(members: Iterator[Member], path: str) -> Iterator[Member]:
    """The members, and if the archive turns out to be damaged, that as the last one."""
    try:
        yield from members
    except DAMAGE as error:
        yield Member("", Location(path, 0), read_nothing, fault=Fault(Reason.UNREADABLE, describe_damage(error)))


def describe_damage(error: Exception) -> str:
    """What is wrong with an archive."""
    return f"the archive is damaged or cut off: {getattr(error, 'strerror', None) or error or type(error).__name__}"


def name_problem(name: str) -> str:
    """Why a member's name cannot be a path inside the archive; "" if it can."""
    if name.startswith("/") or _DRIVE.match(name):
        return "its name is absolute"
    if ".." in name.split("/"):
        return "its name leads out of the archive"
    return "its name has a null byte" if "\0" in name else ""


def clean_name(name: str) -> str:
    """The name without parts that mean nothing, such as the first of `./cat/1.jpg`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))
