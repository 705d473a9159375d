"""Files wherever they lie: local paths directly, `gs://` and `s3://` as `objects` tells.

Only sources are read through here. Decoder processes read local files themselves; what is remote is read by the worker,
so that no decoder needs Beam.
"""

import errno
import gzip
import io
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

from shards.errors import UsageError

_WILD = re.compile(r"[*?\[]")
_GLOB_TOKENS = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_ANY_NAME = r"(?!\.)[^/]+"
_BLOCK = 4_000_000  # of remote files that are read from one end to the other
_IS_FOLDER, _IS_SPECIAL = "is a folder", "is not a regular file"
_UNLISTABLE = "the folder cannot be listed: "


class FileStat(NamedTuple):
    """A file by its path; `problem` tells why it cannot be an input (it vanished, it is a socket), if so."""

    path: str
    size: int
    modified: int = 0
    problem: str = ""

    @property
    def is_folder_problem(self) -> bool:
        """Whether this stands for a folder that cannot be listed."""
        return self.problem.startswith(_UNLISTABLE)


def is_remote(path: str) -> bool:
    """Whether a path is in an object store."""
    return "://" in path


def is_glob(path: str) -> bool:
    """Whether a path has wildcards."""
    return bool(_WILD.search(path))


def glob_root(path: str) -> str:
    """The folder before the first wildcard."""
    return _split_glob(path)[0]


def _split_glob(path: str) -> tuple[str, str]:
    """The folder before the first wildcard, and the pattern after it."""
    wild = _WILD.search(path)
    cut = path.rfind("/", 0, wild.start() if wild else None) + 1
    return path[:cut].rstrip("/") or ("/" if cut else "."), path[cut:]


def glob_matcher(path: str) -> Callable[[str], bool]:
    """Tells whether a path below `glob_root` matches: `**` any folders, `*`, `?` and [] inside one name.

    As in shells, hidden names match only where the dot is written. Unicode is compared in NFC.
    """
    parts = unicodedata.normalize("NFC", _split_glob(path)[1]).split("/")
    folders = "".join(rf"(?:{_ANY_NAME}/)*" if part == "**" else _translate(part) + "/" for part in parts[:-1])
    last = rf"(?:{_ANY_NAME}/)*{_ANY_NAME}" if parts[-1] == "**" else _translate(parts[-1])
    pattern = re.compile(folders + last, re.DOTALL)
    return lambda name: pattern.fullmatch(unicodedata.normalize("NFC", name)) is not None


def _translate(part: str) -> str:
    """One name of a glob as a regular expression."""
    visible = r"(?!\.)" if _WILD.match(part) else ""
    return visible + "".join(map(_translate_token, _GLOB_TOKENS.findall(part)))


def _translate_token(token: str) -> str:
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    if len(token) == 1:
        return re.escape(token)
    inside = token[1:-1]
    negated = inside.startswith("!")
    letters = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[negated:])
    try:
        return "(?!/)" + re.compile(f"[{'^' * negated}{letters}]").pattern
    except re.error:  # a range from z to a holds nothing
        return "[^/]" if negated else "(?!)"


def join_path(root: str, path: str) -> str:
    """A path that is relative to a root, or stands for itself, without `.` and `..`."""
    scheme, mark, rest = path.rpartition("://") if is_remote(path) else root.rpartition("://")
    joined = rest if is_remote(path) else os.path.join(rest, path)
    # An absolute path beside remote ones is a local file.
    return os.path.normpath(joined) if joined.startswith("/") else f"{scheme}{mark}{os.path.normpath(joined)}"


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    if is_remote(path):
        return file_stat(path).problem == "" or _has_objects(path)
    return os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether a path is a folder; in an object store: whether anything lies below it."""
    if is_remote(path):
        return file_stat(path).problem != "" and _has_objects(path)
    return os.path.isdir(path)


def _has_objects(path: str) -> bool:
    return any(page.files or page.folders for page in _objects().list_objects(path, deep=False))


def open_binary(path: str, *, buffered: bool = True) -> BinaryIO:
    """A seekable stream of a file's own bytes, never decompressed.

    Reads of an unbuffered remote stream are one request each, for exactly what is asked.
    """
    if is_remote(path):
        stream = _objects().ObjectStream(path)
        return cast(BinaryIO, io.BufferedReader(stream, _BLOCK) if buffered else stream)
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    """Opens without waiting: a file that became a pipe since it was listed would never answer."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, _IS_FOLDER if stat.S_ISDIR(mode) else _IS_SPECIAL)


def open_text(path: str, *, errors: str = "strict") -> io.TextIOWrapper:
    """UTF-8 text, without a byte order mark; line ends are kept for whoever parses them. `.gz` is decompressed."""
    stream = _open_gzip(path) if path.endswith(".gz") else open_binary(path)
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors, newline="")


def _open_gzip(path: str) -> BinaryIO:
    return cast(BinaryIO, gzip.open(open_binary(path) if is_remote(path) else path))


def file_stat(path: str) -> FileStat:
    """What is known of a file without opening it."""
    if is_remote(path):
        return _object_stat(path)
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        return FileStat(path, 0, problem=getattr(error, "strerror", None) or str(error))
    if stat.S_ISREG(found.st_mode):
        return FileStat(path, found.st_size, found.st_mtime_ns)
    return FileStat(path, 0, problem=_IS_FOLDER if stat.S_ISDIR(found.st_mode) else _IS_SPECIAL)


def _object_stat(path: str) -> FileStat:
    try:
        size = _objects().object_size(path)
    except OSError as error:
        return FileStat(path, 0, problem=str(error.strerror))
    return FileStat(path, 0, problem="No such file or directory") if size is None else FileStat(path, size)


def subfolders(path: str) -> list[str]:
    """The names of the folders in a folder, hidden ones left out; links to folders count."""
    try:
        names = _remote_subfolders(path) if is_remote(path) else _local_subfolders(path)
        return sorted(name for name in names if not name.startswith("."))
    except OSError as error:
        raise UsageError(f"{path} cannot be listed: {error.strerror}") from error


def _remote_subfolders(path: str) -> list[str]:
    pages = _objects().list_objects(path, deep=False)
    return [folder.rstrip("/").rpartition("/")[2] for page in pages for folder in page.folders]


def _local_subfolders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if _leads_to_folder(entry)]


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def walk_files(path: str, *, deep: bool = True) -> Iterator[FileStat]:
    """Every file in a folder, and below it if `deep`; a folder that cannot be listed is one with a problem.

    Links to folders are not followed, so that loops cannot trap us; links to files are.
    """
    if is_remote(path):
        for page in _objects().list_objects(path, deep=deep):
            yield from (FileStat(name, size) for name, size in page.files)
        return
    folders = [path]  # a stack, not recursion: nothing limits how deep folders lie
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders += [entry.path] if deep else []
                    elif (found := file_stat(entry.path)).problem != _IS_FOLDER:
                        yield found
        except OSError as error:
            yield FileStat(folder, 0, problem=_UNLISTABLE + str(error.strerror))


def find_files(path: str) -> list[FileStat]:
    """The one file that a path names, or the files that match its wildcards, in the order of their names."""
    if not is_glob(path) or exists(path):
        return [file_stat(path)]
    (root, pattern), matches = _split_glob(path), glob_matcher(path)
    files = walk_files(root, deep="/" in pattern or "**" in pattern) if is_folder(root) else iter(())
    found = (file for file in files if matches(file.path[len(root) :].lstrip("/")))
    if pattern == path:  # relative to here, which a walk calls ./
        found = (file._replace(path=file.path[2:]) for file in found)
    return sorted(found)


def check_remote(path: str) -> None:
    """Refuses, in words, a scheme that cannot be read here, or a bucket that does not answer."""
    objects = _objects()
    store, (bucket, _) = objects.store_of(path), objects.split_path(path)
    if not bucket or is_glob(bucket):
        raise UsageError(f"source.path {path}: write the bucket's name, without wildcards, after ://")
    try:
        with objects.told(path):
            store.probe(bucket)
    except FileNotFoundError as error:
        raise UsageError(f"source.path {path}: there is no bucket {bucket!r}") from error
    except OSError as error:
        remedy = f"; {store.remedy}" if isinstance(error, PermissionError) or "credentials" in str(error) else ""
        raise UsageError(f"source.path {path} cannot be reached: {error.strerror}{remedy}") from error


def _objects() -> Any:
    from pipelines.inputs import objects  # here, because it imports Beam

    return objects
