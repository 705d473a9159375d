"""Files wherever they lie: local paths directly, `gs://`, `s3://` and the like through Beam's file systems.

Only sources are read through here. Decoder processes read local files themselves; what is remote is read by the worker,
so that no decoder needs Beam.
"""

import fnmatch
import gzip
import io
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

from shards.errors import UsageError

_WILD = re.compile(r"[*?\[]")


class FileStat(NamedTuple):
    """A file by its path; `problem` tells why it cannot be an input (it vanished, it is a socket), if so."""

    path: str
    size: int
    modified: int = 0
    problem: str = ""


def is_remote(path: str) -> bool:
    """Whether a path is for Beam's file systems."""
    return "://" in path


def is_glob(path: str) -> bool:
    """Whether a path has wildcards."""
    return bool(_WILD.search(path))


def glob_root(path: str) -> str:
    """The folder before the first wildcard."""
    before = path[: found.start()] if (found := _WILD.search(path)) else path
    return before.rpartition("/")[0] or ("/" if before.startswith("/") else ".")


def glob_matcher(path: str) -> re.Pattern[str]:
    """What the part after `glob_root` must match: `**` any folders, `*` and `?` inside one, [] as in shells."""
    root = glob_root(path)
    pattern = path if root == "." and not path.startswith("./") else path[len(root) :].lstrip("/")
    parts = [
        ".*/" if part == "**" else fnmatch.translate(part)[4:-3].replace(".*", "[^/]*") + "/"
        for part in pattern.split("/")
    ]
    text = "".join(parts).removesuffix("/").replace(".*/", "(?:.*/)?")
    return re.compile(f"(?s:{text})\\Z")


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    if is_remote(path):
        return bool(_filesystems().exists(path)) or next(iter(_remote_files(path)), None) is not None
    return os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether a path is a folder; in an object store: whether anything lies below it."""
    if is_remote(path):
        return not _filesystems().exists(path) and next(iter(_remote_files(path)), None) is not None
    return os.path.isdir(path)


def open_binary(path: str) -> BinaryIO:
    """A seekable stream of a file's own bytes, never decompressed."""
    if is_remote(path):
        from apache_beam.io.filesystem import CompressionTypes

        stream = _filesystems().open(path, compression_type=CompressionTypes.UNCOMPRESSED)
        return cast(BinaryIO, stream)
    return open(path, "rb")


def open_text(path: str, *, errors: str = "strict") -> io.TextIOWrapper:
    """UTF-8 text, without a byte order mark; line ends are kept for whoever parses them. `.gz` is decompressed."""
    stream = _open_gzip(path) if path.endswith(".gz") else open_binary(path)
    raw = io.BufferedReader(cast(Any, _Raw(stream))) if is_remote(path) else stream
    return io.TextIOWrapper(cast(Any, raw), encoding="utf-8-sig", errors=errors, newline="")


def _open_gzip(path: str) -> BinaryIO:
    # Beam decompresses what it opens, by the end of the name.
    return cast(BinaryIO, _filesystems().open(path) if is_remote(path) else gzip.open(path))


class _Raw(io.RawIOBase):
    """Beam's streams lack what io's wrappers ask for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def file_stat(path: str) -> FileStat:
    """What is known of a file without opening it."""
    if is_remote(path):
        try:
            return FileStat(path, _filesystems().filesystem(path).size(path))
        except Exception as error:  # each cloud's client raises errors of its own
            return FileStat(path, 0, problem=_first_line(error))
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        return FileStat(path, 0, problem=getattr(error, "strerror", None) or str(error))
    if stat.S_ISREG(found.st_mode):
        return FileStat(path, found.st_size, found.st_mtime_ns)
    return FileStat(path, 0, problem="is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file")


def subfolders(path: str) -> list[str]:
    """The names of the folders in a folder, hidden ones left out."""
    if is_remote(path):
        prefix = path.rstrip("/") + "/"
        names = {rest[0] for file in _remote_files(path) if len(rest := file.path[len(prefix) :].split("/", 1)) == 2}
        return sorted(name for name in names if not name.startswith("."))
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def walk_files(path: str, *, deep: bool = True) -> Iterator[FileStat]:
    """Every file in a folder, and below it if `deep`; a folder that cannot be listed is one with a problem.

    Links to folders are not followed, so that loops cannot trap us; links to files are.
    """
    if is_remote(path):
        prefix = path.rstrip("/") + "/"
        yield from (file for file in _remote_files(path) if deep or "/" not in file.path[len(prefix) :])
        return
    folders = [path]  # a stack, not recursion: nothing limits how deep folders lie
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders += [entry.path] if deep else []
                    elif not entry.is_dir():
                        yield file_stat(entry.path)
        except OSError as error:
            yield FileStat(folder, 0, problem=f"the folder cannot be listed: {error.strerror}")


def find_files(path: str) -> list[FileStat]:
    """The one file that a path names, or the files that match its wildcards, in the order of their names."""
    if not is_glob(path) or (not is_remote(path) and os.path.exists(path)):
        return [file_stat(path)]
    root, matcher = glob_root(path), glob_matcher(path)
    if not exists(root):
        return []
    prefix = "" if root == "." and not path.startswith("./") else root.rstrip("/") + "/"
    found = walk_files(root) if "**" in path or path[len(prefix) :].count("/") else walk_files(root, deep=False)
    cut = 2 if prefix == "" else len(prefix)  # scandir(".") says ./name
    return sorted(file for file in found if matcher.match(file.path[cut:]))


def _remote_files(path: str) -> Iterator[FileStat]:
    prefix = path.rstrip("/") + "/"
    # The extension point of Beam's file systems; `match`, the public way, would hold the whole bucket in memory.
    for found in _filesystems().get_filesystem(path)._list(prefix):
        if found.path.startswith(prefix) and not found.path.endswith("/"):
            yield FileStat(found.path, found.size_in_bytes)


def _filesystems() -> Any:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def check_remote(path: str) -> None:
    """Refuses, in words, a scheme that cannot be read here, or a store that does not answer."""
    try:
        exists(path)
    except Exception as error:  # a missing package, a missing credential, a bucket that is not there
        raise UsageError(f"source.path {path} cannot be reached: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
