"""Failures that are no bug, told in the user's words: what stopped the build, what is left of it, and what helps."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.config import BuildConfig
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError, UsageError

# Other processes hand exceptions over as text; ours, and the system's, are found again in it.
_OURS = re.compile(r"shards\.errors\.(UsageError|ShardsmithError): (.+?)(?: \[while running|\n|$)")
_SYSTEM = re.compile(r"\w+Error: \[Errno (\d+)\] (.+?)(?: \[while|\n|$)")
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "make it writable",
    errno.EACCES: "allow that",
    errno.EPERM: "allow that",
}


@contextmanager
def explain_failures(config: BuildConfig) -> Iterator[None]:
    """Turns what Beam wraps around a worker's failure back into the failure itself, where a user can act on it."""
    try:
        yield
    except ShardsmithError as error:
        raise type(error)(str(error).partition(" [while running")[0]) from error
    except Exception as error:
        if str(error).startswith("KeyboardInterrupt"):  # Ctrl-C inside of a step, which Beam makes a RuntimeError of
            raise KeyboardInterrupt from error
        if ours := _OURS.search(str(error)):
            raise {"UsageError": UsageError}.get(ours[1], ShardsmithError)(ours[2]) from error
        if problem := find_problem(error):
            raise ShardsmithError(describe_problem(*problem, BuildFolder(Path(config.output)))) from error
        raise


def find_problem(error: Exception) -> tuple[int, str] | None:
    """The system's own number and words for what went wrong, if it was the system that refused."""
    if isinstance(error, OSError) and error.errno and error.strerror:
        return error.errno, error.strerror + (f": {error.filename!r}" if error.filename else "")
    if found := _SYSTEM.search(str(error)):
        return int(found[1]), found[2]
    full = os.strerror(errno.ENOSPC)  # native libraries give no number
    return (errno.ENOSPC, full) if full in str(error) else None


def describe_problem(number: int, problem: str, folder: BuildFolder) -> str:
    """What happened, what is left, and what to do."""
    root = folder.root.parent.parent if folder.is_next else folder.root
    if not root.exists() and str(root) in problem:
        return f"output {root} is gone; bring it back and give the same command again: it goes on"
    is_whole = folder.is_next or folder.manifest.exists()
    left = f"the dataset in {root} is still what it was" if is_whole else f"output {root} is incomplete"
    remedy = _REMEDIES.get(number, "mend that")
    return f"the build stopped: {problem}; {left}; {remedy} and give the same command again: it goes on"
