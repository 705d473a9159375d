"""One command at a time works in an output directory, and what an ended one left running can do no harm.

A command holds the directory with a lock of the kernel's, which ends with its process, however that ends. Who holds it
stands in `.build/holder.json`, with an id of the run. A worker that outlives its command finds another id there, or
none: it may finish its files but not give them their names. This has no gap: a new run writes its id first and then
sweeps all temporary files, so a file without a name is either swept or finds the new id.

Where the filesystem has no such locks (some network mounts), the file alone must do: it is believed if its process is
alive, and always if it was written on another machine.
"""

import errno
import fcntl
import functools
import json
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from pipelines.config import BuildConfig
from pipelines.workspace.failures import explain_failures
from pipelines.workspace.layout import BuildFolder, sweep_temporaries
from shards.errors import ShardsmithError, UsageError
from shards.files import write_atomically

_NO_LOCKS_HERE = {errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.ENOSYS}
_held: dict[Path, str] = {}  # what this process holds, and for which command
Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Holder:
    """Who holds an output directory; `born` tells a process from a later one of the same number."""

    pid: int
    host: str
    started: str
    command: str
    run: str
    born: str = ""

    def __str__(self) -> str:
        """Reads like `build, process 4711 on tiger, since 2026-01-31T12:00:00Z`."""
        return f"{self.command}, process {self.pid} on {self.host}, since {self.started}"

    @classmethod
    def here(cls, command: str) -> "Holder":
        """This process."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(os.getpid(), socket.gethostname(), now, command, uuid.uuid4().hex, _born(os.getpid()))

    @classmethod
    def load(cls, path: Path) -> "Holder | None":
        """Whoever is named there; None if nobody is."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def is_alive(self) -> bool:
        """Whether the process may still be at work; nobody can tell from another machine."""
        return self.host != socket.gethostname() or (_born(self.pid) == self.born and _exists(self.pid))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _born(pid: int) -> str:
    """When a process was started, in ticks since the machine was; "" where nobody tells, or if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def exclusive(
    command: Callable[Concatenate[BuildConfig, Given], Result],
) -> Callable[Concatenate[BuildConfig, Given], Result]:
    """Makes a command hold its output while it runs, and tell what the system refuses in the user's words."""

    @functools.wraps(command)
    def run(config: BuildConfig, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
        with explain_failures(config), hold(Path(config.output), command.__name__):
            return command(config, *arguments, **named)

    return run


@contextmanager
def hold(root: Path, command: str) -> Iterator[None]:
    """Holds a directory, which is made if it is not there; refuses, and says who has it, if another process does.

    A command that is part of another shares its hold. Nothing is written into the directory until `announce`.
    """
    place = root.resolve()
    if place in _held or "://" in str(root):
        yield
        return
    with _open_folder(root) as descriptor:
        _lock(descriptor, root)
        _held[place] = command
        try:
            yield
        finally:
            del _held[place]
            _leave(BuildFolder(root))


def announce(root: Path) -> None:
    """Says in the directory who holds it, and clears away the temporary files of those who held it before."""
    folder = BuildFolder(root)
    if gone := Holder.load(folder.holder):
        print(f"taking over from a run that ended early: {gone}", file=sys.stderr)
    folder.work.mkdir(exist_ok=True)
    write_atomically(folder.holder, json.dumps(asdict(Holder.here(_held[root.resolve()]))).encode())
    sweep_temporaries(root)


@contextmanager
def _open_folder(root: Path) -> Iterator[int]:
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)  # not inherited: children do not keep the lock
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"output {root} is a file; choose a directory") from error
    except OSError as error:
        raise ShardsmithError(f"output {root} cannot be written: {error.strerror}; choose another --output") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()  # if it is empty, nothing was begun


def _lock(descriptor: int, root: Path) -> None:
    folder = BuildFolder(root)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = Holder.load(folder.holder)
        who = str(holder) if holder and holder.is_alive else "a command that has only just begun or is about to end"
        raise ShardsmithError(f"output {root} is held by {who}; wait for it, or choose another --output") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        _check_alive(Holder.load(folder.holder), folder)


def _check_alive(holder: Holder | None, folder: BuildFolder) -> None:
    if holder and holder.is_alive:
        raise ShardsmithError(
            f"output {folder.root} is held by {holder}; wait for it, or choose another --output; "
            f"if that process is gone, delete {folder.holder}"
        )


def _leave(folder: BuildFolder) -> None:
    holder = Holder.load(folder.holder)
    if holder and (holder.pid, holder.host) == (os.getpid(), socket.gethostname()):
        with suppress(OSError):
            folder.holder.unlink()


@dataclass(frozen=True)
class Run:
    """The run that a worker belongs to, by where it was announced; one that was not is never found ended."""

    announced: Path | None = None
    id: str = ""

    @classmethod
    def find(cls, root: Path) -> "Run":
        """The run that is announced for a directory, or for the one whose next version is made there."""
        for path in (BuildFolder(root).holder, root.parent / BuildFolder(root).holder.name):
            if holder := Holder.load(path):
                return cls(path, holder.run)
        return cls()

    def check(self) -> None:
        """Refuses if the run has ended."""
        holder = Holder.load(self.announced) if self.announced else None
        if self.announced and (holder is None or holder.run != self.id):
            root = self.announced.parent.parent
            if not root.exists():
                raise ShardsmithError(
                    f"output {root} is gone; bring it back and give the same command again: it goes on"
                )
            raise ShardsmithError(f"this worker's run has ended: {root} is now held by {holder or 'nobody'}")

    def end(self) -> None:
        """Ends the run for its workers, of which some may still be at work."""
        if self.announced:
            self.announced.unlink(missing_ok=True)


UNANNOUNCED = Run()
