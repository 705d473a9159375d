"""Local copies of a dataset's shards: storage that is slow or far away is read once, and the order stays what it is.

A shard is copied whole when a record of it is first wanted, and its sha256 is checked on arrival. The copies are kept
- on `disk`: in a folder, named after their content, so that a resumed run, another run, and other workers of the same
  machine find them. Copies that this run does not want make room, the longest unused first, unless another run is using
  the folder;
- in `memory`: in anonymous files (memfd), because TensorFlow reads files and nothing else. They are gone with the
  process, and workers of the same machine do not share them.
"""

import fcntl
import hashlib
import os
import resource
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shards.errors import ShardsmithError, UsageError
from shards.files import open_atomically
from trainer.config import TrainConfig
from trainer.reading.settings import InputConfig
from trainer.reading.source import Source, Split

Fetch = Callable[[str], Iterable[bytes]]  # the content of the file at a place, piece by piece

FETCHES = 8  # at a time
GIGABYTE = 10**9
MEMORY_SHARE = 0.8  # of what is available; the rest is for the model and the shuffle window
_PIECE = 1 << 20
_LOCK, _PART = ".lock", ".part"
_SPARE_DESCRIPTORS = 512  # for everything that is no shard
INDEX_BYTES = 24  # of a record, about


@dataclass(frozen=True)
class CachedFile:
    """A file that is wanted nearby: where it comes from and what it must be."""

    origin: str
    sha256: str
    bytes: int

    @property
    def name(self) -> str:
        """What a copy is called: unique by content, and telling where it came from."""
        return f"{self.sha256[:32]}-{Path(self.origin).name}"


def read_pieces(origin: str) -> Iterator[bytes]:
    """Fetches from a file system."""
    with open(origin, "rb") as stream:
        while piece := stream.read(_PIECE):
            yield piece


class Cache(ABC):
    """Where copies are kept. `path` is known before the copy is there; `bring` makes it be there."""

    def __init__(self, fetch: Fetch = read_pieces) -> None:
        """`fetch` gets a file from where the dataset is."""
        self._fetch = fetch

    @abstractmethod
    def path(self, file: CachedFile) -> str:
        """Where the copy is read."""

    @abstractmethod
    def holds(self, file: CachedFile) -> bool:
        """Whether the copy is there."""

    @abstractmethod
    def keep(self, file: CachedFile) -> None:
        """Makes the copy."""

    def bring(self, files: Iterable[CachedFile]) -> None:
        """Returns when all of the files are here."""
        missing = [file for file in files if not self.holds(file)]
        if missing:
            with ThreadPoolExecutor(FETCHES) as pool:
                list(pool.map(self.keep, missing))

    def _arrive(self, file: CachedFile, stream: BinaryIO) -> None:
        """Fetches into the stream, or fails naming the file."""
        digest = hashlib.sha256()
        try:
            for piece in self._fetch(file.origin):
                digest.update(piece)
                stream.write(piece)
        except OSError as error:
            raise ShardsmithError(
                f"{file.origin} cannot be copied into the cache: {error.strerror or error}"
            ) from error
        if digest.hexdigest() != file.sha256:
            raise ShardsmithError(
                f"{file.origin} arrived in the cache with another sha256 than the manifest's; "
                "see whether it is damaged with `python -m shards verify`"
            )


class DiskCache(Cache):
    """Copies in a folder."""

    def __init__(self, folder: Path, wanted: Sequence[CachedFile], *, most: int, fetch: Fetch = read_pieces) -> None:
        """Makes room for what is `wanted`: everything in the folder together takes at most `most` bytes."""
        super().__init__(fetch)
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / _LOCK).open("w")
        except OSError as error:
            raise ShardsmithError(f"input.cache_folder {folder} cannot be written: {error.strerror}") from error
        self._make_room(wanted, most)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # until the process ends

    def close(self) -> None:
        """Lets others remove the copies."""
        self._lock.close()

    def path(self, file: CachedFile) -> str:
        """A name in the folder."""
        return str(self._folder / file.name)

    def holds(self, file: CachedFile) -> bool:
        """Whether the folder has it; one that is used is young again."""
        try:
            os.utime(self.path(file))
        except FileNotFoundError:
            return False
        return True

    def keep(self, file: CachedFile) -> None:
        """Copies under another name first; if another worker is at it, waits for that one's copy."""
        path = Path(self.path(file))
        with path.with_name(path.name + _PART).open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not path.exists():
                with open_atomically(path) as stream:
                    self._arrive(file, stream)
        Path(turn.name).unlink(missing_ok=True)

    def _make_room(self, wanted: Sequence[CachedFile], most: int) -> None:
        names = {file.name for file in wanted}
        others = [path for path in self._folder.iterdir() if path.name not in names | {_LOCK}]
        excess = sum(file.bytes for file in set(wanted)) + sum(_size(path) for path in others) - most
        if excess <= 0:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # a worker of this run has made room, or another run needs what is there: the disk decides
        for path in sorted(others, key=_last_use):
            if excess > 0:
                excess -= _size(path)
                path.unlink(missing_ok=True)


class MemoryCache(Cache):
    """Copies in anonymous files of this process."""

    def __init__(self, wanted: Sequence[CachedFile], *, fetch: Fetch = read_pieces) -> None:
        """Opens an empty file for each that is `wanted`."""
        super().__init__(fetch)
        _allow_descriptors(len(wanted))
        self._descriptors = {file: os.memfd_create(file.name[:200]) for file in wanted}
        self._here: set[CachedFile] = set()

    def path(self, file: CachedFile) -> str:
        """A name that opens the anonymous file."""
        return f"/proc/self/fd/{self._descriptors[file]}"

    def holds(self, file: CachedFile) -> bool:
        """Whether the file is filled."""
        return file in self._here

    def keep(self, file: CachedFile) -> None:
        """Fills the file."""
        with open(self._descriptors[file], "wb", closefd=False) as stream:
            self._arrive(file, stream)
        self._here.add(file)


def _allow_descriptors(files: int) -> None:
    """Raises this process's limit of open files as far as needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files + _SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ShardsmithError(
            f"input.cache memory needs {needed:,} open files for {files:,} shards and indexes, the limit is {hard:,}; "
            "raise it (ulimit -Hn), or use input.cache disk"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@dataclass(frozen=True)
class CachedSplit(Split):
    """A split that is read from copies: each of `files` is a shard and its index."""

    cache: Cache = field(kw_only=True)
    files: tuple[tuple[CachedFile, CachedFile], ...] = field(kw_only=True)

    def bring(self, shards: Iterable[int]) -> None:
        """Returns when these shards can be read."""
        self.cache.bring(file for shard in sorted(set(shards)) for file in self.files[shard])


def local_split(config: TrainConfig, source: Source, name: str) -> Split:
    """A split as training reads it: in place, or from copies if the config says so."""
    split = source.split(name)
    if config.input.cache == "none":
        return split
    files = _files_of(source, name)
    cache = _open_cache(config, source, [file for pair in files for file in pair])
    return CachedSplit(
        name=name,
        paths=tuple(cache.path(shard) for shard, _ in files),
        indexes=tuple(cache.path(index) for _, index in files),
        shard_records=split.shard_records,
        classes=split.classes,
        cache=cache,
        files=files,
    )


def check_cache(config: TrainConfig, source: Source) -> None:
    """Refuses a cache that does not hold everything that the run reads again and again."""
    if config.input.cache == "none":
        return
    files = _wanted(config, source)
    size = sum(file.bytes for file in files)
    limit = _limit(config.input)
    if limit is not None and size > limit:
        raise UsageError(
            f"input.cache_gb {config.input.cache_gb:g} does not hold the {size / GIGABYTE:.3g} GB that this run reads; "
            "raise it, or set input.cache to none"
        )
    if config.input.cache == "memory":
        room, place, remedy = available_memory() * MEMORY_SHARE, "memory that can be used", "use input.cache disk"
    else:
        folder = cache_folder(config.input)
        room, place = _free(folder) + _held(folder), f"space in {folder}"
        remedy = "set input.cache_folder to a larger disk"
    if size > room:
        raise UsageError(
            f"input.cache {config.input.cache}: this run reads {size / GIGABYTE:.3g} GB again and again, and there are "
            f"{room / GIGABYTE:.3g} GB of {place}; {remedy}, or set input.cache to none"
        )


def cache_folder(config: InputConfig) -> Path:
    """Where a cache on disk is."""
    return Path(config.cache_folder or Path(tempfile.gettempdir()) / f"shardsmith-cache-{os.getuid()}")


def available_memory() -> int:
    """Bytes that this process, in its container, may still use."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = [int(facts["MemAvailable"].split()[0]) * 1024]
    limit, used = (Path("/sys/fs/cgroup") / f"memory.{name}" for name in ("max", "current"))
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        free.append(int(text) - int(used.read_text()))
    return min(free)


def _limit(config: InputConfig) -> int | None:
    return None if config.cache_gb is None else int(config.cache_gb * GIGABYTE)


def _wanted(config: TrainConfig, source: Source) -> list[CachedFile]:
    """All files that the run reads again and again."""
    names = {config.splits.train}
    if config.evaluate_every_epochs is not None:
        names.add(config.splits.evaluate)
    return [file for name in sorted(names) for pair in _files_of(source, name) for file in pair]


def _files_of(source: Source, split: str) -> tuple[tuple[CachedFile, CachedFile], ...]:
    def place(path: str) -> str:
        return str(source.directory / path)

    return tuple(
        (
            CachedFile(place(shard.path), shard.sha256, shard.bytes),
            CachedFile(place(shard.index), shard.index_sha256, shard.records * INDEX_BYTES),
        )
        for shard in source.manifest.split(split).shards
    )


def _open_cache(config: TrainConfig, source: Source, files: Sequence[CachedFile]) -> Cache:
    if config.input.cache == "memory":
        return MemoryCache(files)
    folder, limit = cache_folder(config.input), _limit(config.input)
    most = _free(folder) + _held(folder) if limit is None else limit
    return DiskCache(folder, [*_wanted(config, source), *files], most=most)


def _free(folder: Path) -> int:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


def _held(folder: Path) -> int:
    return sum(_size(path) for path in folder.iterdir()) if folder.is_dir() else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another worker has just removed it
        return 0


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
