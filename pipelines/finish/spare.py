"""Spare copies: of a dataset's small files in one archive, and of its manifest.

What describes a dataset cannot be made again from its sources alone: times, history, the analysis of an earlier
machine. It is small, so there are two of it. The archive lies apart from `state`, for whoever deletes that folder.
"""

import shutil
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from shards.errors import ShardsmithError
from shards.files import open_atomically, write_atomically
from shards.local import LOCAL, SEEN
from shards.manifest import MANIFEST, MANIFEST_COPY, SPARE, Manifest, parse_manifest

# Large, or to be had from the sources, or true on one machine only, or a copy itself.
_NOT_SPARED = ("state/facts/", f"{SEEN}/", LOCAL, "rejected/quarantine/", MANIFEST_COPY, ".build/")


def is_spared(name: str) -> bool:
    """Whether a file of a dataset has a copy in the archive."""
    large = name.endswith((".tfrecord", ".idx")) or name.startswith(_NOT_SPARED)
    return not large and name not in (MANIFEST, SPARE)


def write_spare(root: Path, names: Iterable[str], path: Path) -> None:
    """Writes the archive of those files that have a copy; the same files give the same bytes.

    They are stored as they are: what a compressor makes of them depends on its version.
    """
    with open_atomically(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(filter(is_spared, names)):
            member = zipfile.ZipInfo(name)  # of 1980, whenever the file was written
            member.create_system = 3
            member.file_size = (root / name).stat().st_size
            with (root / name).open("rb") as source, archive.open(member, "w") as copy:
                shutil.copyfileobj(source, copy)


def read_spare(root: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The copies of some files, with their names; those that cannot be read are left out."""
    try:
        archive = zipfile.ZipFile(root / SPARE)
    except Exception:
        return  # whichever byte is damaged, zipfile and its decompressors have another word for it
    with archive:
        for name in names:
            content = _read_member(archive, name)
            if content is not None:
                yield name, content


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes | None:
    try:
        return archive.read(name)
    except Exception:
        return None


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Completes the dataset: the copy of its manifest, and then the manifest itself."""
    content = manifest.to_json().encode()
    write_atomically(root / MANIFEST_COPY, content)
    write_atomically(root / MANIFEST, content)


def restore_manifest(root: Path) -> tuple[Manifest, list[str]]:
    """The manifest, and which of its two files had to be made again from the other."""
    names = (MANIFEST, MANIFEST_COPY)
    found = [_read(root / name) for name in names]
    manifests = [each for each in found if isinstance(each, Manifest)]
    if not manifests:
        raise ShardsmithError(
            f"{found[0]}, and {found[1]}: nothing says any more what the dataset was; "
            "restore one of the two from a backup, or build again with --overwrite"
        )
    content = manifests[0].to_json().encode()
    wrong = [name for name in names if not (root / name).exists() or (root / name).read_bytes() != content]
    for name in wrong:
        (root / name).parent.mkdir(exist_ok=True)
        write_atomically(root / name, content)
    return manifests[0], wrong


def _read(path: Path) -> Manifest | str:
    """A manifest, or what is wrong with it."""
    try:
        return parse_manifest(path.read_bytes().decode(), place=str(path))
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, UnicodeDecodeError) as error:
        return f"{path} cannot be read: {error}"
    except ShardsmithError as error:
        return str(error).partition(";")[0]
