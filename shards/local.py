"""state/local.json: the checksums of files that are true on this machine only, and so are not in the manifest.

It holds `files`, the sha256 of each by its path in the dataset, and as its last key its own `sha256`, made like that of
the manifest. A dataset that was copied without `state/seen` needs no such list.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shards.damage import HashedFile, Problem, Tick, unreadable
from shards.files import hash_file, write_atomically
from shards.manifest import digest

LOCAL, SEEN = "state/local.json", "state/seen"


def write_local(root: Path, paths: Iterable[Path]) -> None:
    """Lists files of the dataset at `root` with their checksums; an earlier list gives way if it is another."""
    content = _render({"files": {path.relative_to(root).as_posix(): hash_file(path) for path in sorted(paths)}})
    if not (root / LOCAL).exists() or (root / LOCAL).read_bytes() != content:
        write_atomically(root / LOCAL, content)


def read_local(root: Path) -> dict[str, str]:
    """The listed checksums by path; raises ValueError if the list is damaged, FileNotFoundError if there is none."""
    content = (root / LOCAL).read_bytes()
    try:
        values = json.loads(content)
        del values["sha256"]
        files = dict(values["files"])
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"not a list of files: {error}") from error
    # The very bytes, because some bits of a JSON file can flip without changing what it says.
    if _render(values) != content:
        raise ValueError("its content does not match its own sha256")
    return files


def check_local(root: Path, *, fast: bool = False, tick: Tick = lambda count: None) -> Iterator[Problem]:
    """What is wrong with the list or with what it lists; a `fast` check reads the list alone."""
    try:
        files = read_local(root)
    except FileNotFoundError:
        if any(local_files(root)):
            yield Problem(LOCAL, f"the file is missing, though there are files in {SEEN}")
    except OSError as error:
        yield unreadable(LOCAL, error, what="file")
    except ValueError as error:
        yield Problem(LOCAL, f"is damaged: {error}")
    else:
        for path, sha256 in files.items():
            yield from _check_file(root, path, sha256, fast=fast, tick=tick)
        for path in local_files(root):
            if path not in files:
                yield Problem(path, f"is not in {LOCAL}")


def local_files(root: Path) -> Iterator[str]:
    """The paths of the files that a list should have, in order."""
    for path in sorted((root / SEEN).rglob("*")):
        if not path.is_dir():
            yield path.relative_to(root).as_posix()


def _check_file(root: Path, path: str, sha256: str, *, fast: bool, tick: Tick) -> Iterator[Problem]:
    try:
        with HashedFile(root / path, tick) as file:
            if not fast:
                file.read_to_end()
    except OSError as error:
        yield unreadable(path, error, what="file")
    else:
        if not fast and file.sha256() != sha256:
            yield Problem(path, f"sha256 differs from that in {LOCAL}")


def _render(values: dict[str, Any]) -> bytes:
    return (json.dumps(values | {"sha256": digest(values)}, indent=1, ensure_ascii=False) + "\n").encode()
