"""manifest.json: what a finished dataset directory holds. It is written last, so its existence means that the dataset is complete.

Paths are relative to the directory, so a dataset can be moved or copied. The file is a pure function of the inputs and settings:
no dates, no host names, no absolute paths.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shards.errors import ShardsmithError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Value):
    """A file of the dataset other than a shard."""

    path: str
    bytes: int
    sha256: str


class ShardEntry(FileEntry):
    """One TFRecord file and its index; `inputs` is the fingerprint of what it was made from."""

    index: str
    index_sha256: str
    records: int
    inputs: str


class SplitEntry(_Value):
    """One split: its shards in reading order and how many examples of each label they hold."""

    name: str
    records: int
    bytes: int
    labels: dict[str, int]
    shards: tuple[ShardEntry, ...]


class FeatureEntry(_Value):
    """One feature of every record."""

    name: str
    type: Literal["bytes", "int64", "float"]
    description: str


class Counts(_Value):
    """The accounting of a build: read = written + rejected + duplicates."""

    read: int
    written: int
    rejected: dict[str, int]
    duplicates: int

    @property
    def balanced(self) -> bool:
        """Whether every input is accounted for."""
        return self.read == self.written + sum(self.rejected.values()) + self.duplicates


class Manifest(_Value):
    """The table of contents of a dataset directory."""

    format_version: int
    name: str
    fingerprint: str
    made_by: dict[str, str]
    settings: dict[str, Any]
    labels: tuple[str, ...]
    features: tuple[FeatureEntry, ...]
    counts: Counts
    splits: tuple[SplitEntry, ...]
    files: tuple[FileEntry, ...]

    def split(self, name: str) -> SplitEntry:
        """The split called `name`, or an error that lists those there are."""
        for split in self.splits:
            if split.name == name:
                return split
        raise ShardsmithError(f"the dataset has no split {name!r}; it has {', '.join(s.name for s in self.splits)}")

    def to_json(self) -> str:
        """The text of manifest.json."""
        return self.model_dump_json(indent=1) + "\n"


def read_manifest(directory: str | Path) -> Manifest:
    """Reads the manifest of a complete dataset; refuses a missing, newer or damaged one with what to do about it."""
    path = Path(directory) / MANIFEST
    if not path.parent.is_dir():
        raise ShardsmithError(f"no dataset at {directory}: there is no such directory")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ShardsmithError(
            f"no manifest: {directory} is not a complete dataset; build it with `python -m pipelines build`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ShardsmithError(f"{path} cannot be read: {error}") from error
    return parse_manifest(text, place=str(path))


def parse_manifest(text: str, *, place: str) -> Manifest:
    """Validates the text of a manifest; `place` is named in errors."""
    version = _format_version(text)
    if version is not None and version > FORMAT_VERSION:
        raise ShardsmithError(
            f"{place} has format version {version}, this shardsmith reads up to {FORMAT_VERSION}; upgrade shardsmith"
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise ShardsmithError(f"{place} is damaged: {where}: {problem['msg']}; restore or rebuild the dataset") from error


class _Header(BaseModel):
    format_version: int


def _format_version(text: str) -> int | None:
    try:
        return _Header.model_validate_json(text).format_version
    except ValidationError:
        return None  # The full validation says what is wrong.
