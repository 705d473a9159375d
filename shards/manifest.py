"""manifest.json: what a finished dataset directory holds. It is written last: if it exists, the dataset is complete.

Paths are relative to the directory, so a dataset can be moved or copied. The file is a pure function of the inputs and
settings, but for the times in its history (SOURCE_DATE_EPOCH sets them): no host names, no absolute paths. It holds the
checksum of every file, and as its last key its own: the sha256 of all other keys and values as JSON with sorted keys
and no spaces.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from shards.errors import ShardsmithError, UsageError
from shards.records import WrittenShard

MANIFEST = "manifest.json"
MANIFEST_COPY = "state/manifest.json"  # the same bytes, from which the other can be restored
SPARE = "spare.zip"  # copies of the small files; a dataset that has them has a copy of its manifest too
FORMAT_VERSION = 3
# What a record's label is: one class, several, none at all, or numbers (the feature `target`).
LabelKind = Literal["single", "multi", "none", "regression"]
_CHECKSUM = "sha256"


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"{path!r} does not lie inside the dataset")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Value):
    """A file of the dataset other than a shard."""

    path: RelativePath
    bytes: NonNegativeInt
    sha256: str


class ShardEntry(FileEntry):
    """One TFRecord file and its index; `inputs` is the fingerprint of what it was made from."""

    index: RelativePath
    index_sha256: str
    records: NonNegativeInt
    inputs: str

    @classmethod
    def of(cls, name: str, written: WrittenShard, *, inputs: str = "") -> "ShardEntry":
        """The entry of a shard such as `train/train-00000`, which lies beside its index."""
        return cls(path=f"{name}.tfrecord", index=f"{name}.idx", inputs=inputs, **asdict(written))


class SplitEntry(_Value):
    """One split: its shards in reading order and how many examples of each label they hold.

    The next new shard gets `next_index`: names are never used twice, so that a file never changes under a reader.
    """

    name: str
    records: NonNegativeInt
    bytes: NonNegativeInt
    labels: dict[str, NonNegativeInt]
    shards: tuple[ShardEntry, ...]
    next_index: NonNegativeInt = 0


class FeatureEntry(_Value):
    """One feature of every record: `length` values, or any number if that is null.

    Those `per` box have a value for each box of the record; `boxes` itself has four.
    """

    name: str
    type: Literal["bytes", "int64", "float"]
    description: str
    length: PositiveInt | None = 1
    per: Literal["record", "box"] = "record"


class SourceEntry(_Value):
    """What became of the inputs of one source that fell to one split."""

    source: str
    split: str
    listed: NonNegativeInt
    written: NonNegativeInt
    rejected: NonNegativeInt
    duplicates: NonNegativeInt


class Counts(_Value):
    """The accounting of a build: listed = written + rejected + duplicates, in all and per source and split.

    `kept_truncated` pictures were cut off and kept, as `image.truncated` asked; they are among the written.
    """

    listed: NonNegativeInt
    written: NonNegativeInt
    rejected: dict[str, NonNegativeInt]
    duplicates: NonNegativeInt
    boxes_kept: NonNegativeInt = 0
    boxes_dropped: NonNegativeInt = 0
    kept_truncated: NonNegativeInt = 0
    sources: tuple[SourceEntry, ...]

    def problems(self) -> list[str]:
        """Where an input is in no account or in several; empty if every single one is accounted for."""
        total = (self.listed, self.written, sum(self.rejected.values()), self.duplicates)
        parts = [(each.listed, each.written, each.rejected, each.duplicates) for each in self.sources]
        names = ["the dataset", *(f"source {each.source!r} in split {each.split!r}" for each in self.sources)]
        problems = [
            f"{name}: {listed} listed are not {written} written + {rejected} rejected + {duplicates} duplicates"
            for name, (listed, written, rejected, duplicates) in zip(names, [total, *parts], strict=True)
            if listed != written + rejected + duplicates
        ]
        for what, whole, *counts in zip(("listed", "written", "rejected", "duplicates"), total, *parts, strict=True):
            if whole != sum(counts):
                problems.append(f"the dataset: {whole} {what}, its sources have {sum(counts)}")
        return problems


class HistoryEntry(_Value):
    """How one version came about: by which command and settings, when, and what it changed.

    `inputs` are those listed; `settings` holds what differs from the version before, as old and new values in words.
    """

    version: PositiveInt
    command: str
    when: str
    fingerprint: str
    inputs: NonNegativeInt
    added: NonNegativeInt
    removed: NonNegativeInt
    changed: NonNegativeInt
    written: NonNegativeInt
    new_shards: NonNegativeInt
    ended_shards: NonNegativeInt
    settings: dict[str, tuple[str, str]] = {}


class Leaks(_Value):
    """How many examples of later splits have a copy in an earlier one, or share their group with an example there.

    `near` is null where nobody looked for pictures that look alike. In `given` of all these cases the source itself
    decided on a split. Each case is a line of leaks.jsonl.
    """

    exact: NonNegativeInt = 0
    near: NonNegativeInt | None = None
    group: NonNegativeInt = 0
    given: NonNegativeInt = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.exact + (self.near or 0) + self.group


class ShuffleEntry(_Value):
    """Whether the order of a split tells anything: of some `examples` over all its shards, or null where it cannot.

    `source_z` and `class_z` are the standard deviations by which runs of neighbours from the same half of the source,
    and of the same class, differ from a random order; `mix_p` is the chance that a random order mixes the classes as
    unevenly over the shards.
    """

    split: str
    examples: NonNegativeInt
    shards: NonNegativeInt
    source_z: float | None = None
    class_z: float | None = None
    mix_p: float | None = None

    @property
    def is_random(self) -> bool:
        """Whether no test speaks against a random order; by chance one in ten thousand does."""
        return all(abs(z or 0) < 3.89 for z in (self.source_z, self.class_z)) and (
            self.mix_p is None or self.mix_p >= 1e-4
        )


class Manifest(_Value):
    """The table of contents of a dataset directory.

    `retired` files belong to the version before: they stay for its readers until the next version is made.
    """

    format_version: PositiveInt
    version: PositiveInt = 1
    name: str
    fingerprint: str
    made_by: dict[str, str]
    settings: dict[str, Any]
    label_kind: LabelKind
    labels: tuple[str, ...]
    features: tuple[FeatureEntry, ...]
    counts: Counts
    splits: tuple[SplitEntry, ...]
    files: tuple[FileEntry, ...]
    retired: tuple[FileEntry, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    leaks: Leaks = Leaks()
    shuffle: tuple[ShuffleEntry, ...] = ()

    @property
    def label_summary(self) -> str:
        """What the examples are labelled with, in words that stand behind them."""
        match self.label_kind:
            case "single":
                return f"of {len(self.labels):,} classes"
            case "multi":
                return f"with any of {len(self.labels):,} labels"
            case "regression":
                return "with a target"
            case "none":
                return "without labels"

    def split(self, name: str) -> SplitEntry:
        """The split called `name`, or an error that lists those there are."""
        for split in self.splits:
            if split.name == name:
                return split
        names = ", ".join(split.name for split in self.splits)
        raise UsageError(f"the dataset has no split {name!r}; it has {names or 'none at all'}")

    def to_json(self) -> str:
        """The text of manifest.json, with its checksum."""
        values = json.loads(self.model_dump_json())
        return json.dumps(values | {_CHECKSUM: digest(values)}, indent=1, ensure_ascii=False) + "\n"


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
    """Validates the text of a manifest, its checksum first; `place` is named in errors."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(place, f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise _damaged(place, "not a JSON object")
    version = values.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ShardsmithError(
            f"{place} has format version {version}, this shardsmith reads up to {FORMAT_VERSION}; upgrade shardsmith"
        )
    if isinstance(version, int) and version < FORMAT_VERSION:
        raise ShardsmithError(
            f"{place} has format version {version}, this shardsmith reads {FORMAT_VERSION}; rebuild the dataset"
        )
    if values.pop(_CHECKSUM, None) != digest(values):
        raise _damaged(place, "its content does not match its own sha256")
    try:
        return Manifest.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise _damaged(place, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error


def _damaged(place: str, problem: str) -> ShardsmithError:
    return ShardsmithError(f"{place} is damaged: {problem}; mend it with `python -m pipelines repair CONFIG`")


def digest(values: dict[str, Any]) -> str:
    """The sha256 of a JSON object: the same for the same content, however it is indented or ordered."""
    return hashlib.sha256(_canonical(values)).hexdigest()


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
