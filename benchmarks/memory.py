"""The memory of the processes below this one, each page counted once. Linux only.

The kernel's PSS would do, but it shares the pages of a library with every process of the machine: a neighbour that runs
TensorFlow too makes ours look half a gigabyte smaller. So a page of a file counts in full, once for all our processes
(for the one that holds the most of that piece of the file), and the rest by its PSS, which only a fork shares.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import psutil

# Looking closely at a process with TensorFlow takes the kernel 40 ms, so that happens only at a new high of this much.
_NEW_HIGH = 1.02
# A mapping's place in its file (offset, device, inode), and its resident, proportional and anonymous kilobytes.
_MAPPING = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ (\S+ \S+ \d+).*\n"
    rb"(?:[A-Z].*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB\n(?:[A-Z].*\n)*?Anonymous: +(\d+) kB$",
    re.MULTILINE,
)
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """The highest memory seen so far, of all processes below this one but those that were there before."""

    def __init__(self, before: Iterable[int] = ()) -> None:
        """Nothing seen."""
        self.bytes = self._rough_high = 0
        self._before = frozenset(before)

    def update(self) -> None:
        """Looks at all processes below this one, even those that lost their parent to it."""
        pids = [pid for pid in descendants() if pid not in self._before]
        rough = sum(resident_bytes(pid) for pid in pids)
        if rough > self._rough_high * _NEW_HIGH:
            self._rough_high = rough
            self.bytes = max(self.bytes, exact_bytes(pids))


def descendants() -> list[int]:
    """The processes below this one."""
    return [process.pid for process in psutil.Process().children(recursive=True)]


def resident_bytes(pid: int) -> int:
    """What a process holds, pages shared with others included; costs next to nothing."""
    fields = _read(pid, "statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def exact_bytes(pids: Iterable[int]) -> int:
    """What the processes hold together."""
    own, files = 0, dict[bytes, int]()
    for pid in pids:
        for place, resident, proportional, anonymous in _MAPPING.findall(_read(pid, "smaps")):
            own += min(int(proportional), int(anonymous))
            files[place] = max(files.get(place, 0), int(resident) - int(anonymous))
    return (own + sum(files.values())) * 1024


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # It ended between the listing and now.
        return b""
