"""The dataset as the trainer sees it: opened and checked against the config before TensorFlow is imported."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shards.errors import ShardsmithError, UsageError
from shards.manifest import FeatureEntry, LabelKind, Manifest, read_manifest
from shards.order import balanced_draws
from shards.records import read_index
from trainer.config import TrainConfig
from trainer.reading.settings import AugmentConfig, Sampling

TRANSFORM_FN = "transform_fn"
LABEL_FEATURES = {"single": ("label", "int64"), "multi": ("label", "int64"), "regression": ("target", "float")}
GIVEN_OTHERWISE = ("features", "label", "target")
FEWEST_LABELS = {"single": 2, "multi": 1}
FIXED_SIZE_MODES = ("exact", "center_crop", "border")
INDEXES_IN_MEMORY = 1024


@dataclass(frozen=True)
class Geometry:
    """How a picture of any size becomes the model's input of `size` (height, width).

    The picture is first brought to `box` by `mode`; a `box` larger than `size` then loses its margins. `only_jpegs`
    says that the build stored nothing but JPEGs, so that nobody needs to look.
    """

    mode: str
    box: tuple[int, int]
    size: tuple[int, int]
    only_jpegs: bool = False

    def __str__(self) -> str:
        """Reads like `pictures of 32x32`."""
        return f"pictures of {self.size[0]}x{self.size[1]}"


@dataclass(frozen=True)
class Rows:
    """The model's input is a row of `length` numbers."""

    length: int

    def __str__(self) -> str:
        """Reads like `rows of 100 features`."""
        return f"rows of {self.length} features"


@dataclass(frozen=True)
class Split:
    """One split's files: paths, indexes and record counts, in manifest order; and how many classes have examples."""

    name: str
    paths: tuple[str, ...]
    indexes: tuple[str, ...]
    shard_records: tuple[int, ...]
    classes: int = 0

    @property
    def records(self) -> int:
        """Examples in the split."""
        return sum(self.shard_records)

    def draws(self, sampling: Sampling) -> int:
        """Examples in an epoch of training."""
        return balanced_draws(self.records, self.classes) if sampling == "balanced" else self.records

    def bring(self, shards: Iterable[int]) -> None:
        """Returns when these shards can be read; those of a dataset read in place always can."""

    @cached_property
    def _rows(self) -> Any:
        return lru_cache(maxsize=INDEXES_IN_MEMORY)(self._read_rows)

    def _read_rows(self, shard: int) -> npt.NDArray[np.int64]:
        path, expected = self.indexes[shard], self.shard_records[shard]
        try:
            rows = read_index(Path(path))
        except (OSError, ValueError) as error:
            raise ShardsmithError(
                f"index {path} cannot be read: {error}; mend it with `python -m pipelines repair`"
            ) from error
        if len(rows) != expected:
            raise ShardsmithError(
                f"index {path} lists {len(rows)} records, the manifest {expected}; "
                "mend it with `python -m pipelines repair`"
            )
        return rows

    def place(self, ordinal: int) -> tuple[int, int]:
        """Where a record of the split is: (shard, number in the shard)."""
        starts = np.concatenate([[0], np.cumsum(self.shard_records)])
        shard = int(np.searchsorted(starts, ordinal, side="right")) - 1
        return shard, ordinal - int(starts[shard])

    def extent(self, shard: int, first: int, count: int) -> tuple[int, int]:
        """Where `count` records from `first` on lie in the shard's file: (offset, bytes)."""
        rows = self._rows(shard)[first : first + count]
        return int(rows[0, 0]), int(rows[:, 1].sum())

    def offsets(self, shard: int, records: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
        """Where each of some records of a shard, by default of all, begins in its file."""
        rows = self._rows(shard) if records is None else self._rows(shard)[records]
        return rows[:, 0]


@dataclass(frozen=True)
class Source:
    """A complete dataset and the form in which its pictures or rows are used."""

    directory: Path
    manifest: Manifest
    form: Geometry | Rows
    columns: tuple[FeatureEntry, ...] = ()

    @property
    def label_kind(self) -> LabelKind:
        """What is learnt: one class per example, several labels, or numbers."""
        return self.manifest.label_kind

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in id order."""
        return self.manifest.labels

    @property
    def targets(self) -> int:
        """How many numbers a regression predicts."""
        return find_feature(self.manifest, "target", "float", self.directory).length or 0

    @property
    def goal(self) -> str:
        """What is learnt, in words."""
        if self.label_kind == "regression":
            return f"with {self.targets} target(s)"
        return f"in {len(self.labels)} classes" if self.label_kind == "single" else f"with {len(self.labels)} label(s)"

    @property
    def transform_directory(self) -> Path:
        """Where the tf.Transform SavedModel is."""
        return self.directory / TRANSFORM_FN

    def split(self, name: str) -> Split:
        """The files of a split that has examples."""
        return find_split(self.directory, self.manifest, name)

    def digest(self, split: str) -> str:
        """A fingerprint of a split's content and of the label ids, equal wherever the dataset is copied to."""
        parts = [shard.sha256 for shard in self.manifest.split(split).shards]
        return hashlib.sha256("\n".join([*parts, *self.labels]).encode()).hexdigest()


@dataclass(frozen=True)
class Records:
    """A split that a trained model is asked about, and the feature that it is given."""

    directory: Path
    split: Split
    stored: FeatureEntry
    features: tuple[FeatureEntry, ...]

    @property
    def row_length(self) -> int:
        """How many numbers a row has; 0 for pictures."""
        return self.stored.length or 1 if self.stored.name == "features" else 0


def open_records(dataset: str, split: str | None) -> Records:
    """Opens a dataset, labelled or not, to predict one of its splits; there is no need to name the only one."""
    directory = Path(dataset)
    manifest = read_manifest(directory)
    names = [entry.name for entry in manifest.splits if entry.records]
    if split is None and len(names) != 1:
        raise UsageError(f"{directory} has splits {', '.join(names)}; choose one with --split")
    chosen = find_split(directory, manifest, split or names[0])
    return Records(directory, chosen, find_input(manifest, directory), manifest.features)


def open_source(config: TrainConfig) -> Source:
    """Opens the dataset; refuses one that cannot be trained on, with what to do about it."""
    directory = Path(config.dataset)
    manifest = read_manifest(directory)
    stored = find_input(manifest, directory)
    _check_labels(manifest, directory)
    if not (directory / TRANSFORM_FN / "saved_model.pb").is_file():
        raise ShardsmithError(
            f"{directory} has no {TRANSFORM_FN}: it is incomplete; mend it with `python -m pipelines repair`"
        )
    form = find_rows(config, stored) if stored.name == "features" else find_geometry(config, manifest.settings)
    columns = find_columns(config.model.columns, manifest.features, directory)
    return Source(directory=directory, manifest=manifest, form=form, columns=columns)


def find_split(directory: Path, manifest: Manifest, name: str) -> Split:
    """The files of a split that has examples."""
    entry = manifest.split(name)
    if not entry.records:
        raise ShardsmithError(f"split {name!r} of {directory} has no examples; choose another split or rebuild")
    return Split(
        name=name,
        paths=tuple(str(directory / shard.path) for shard in entry.shards),
        indexes=tuple(str(directory / shard.index) for shard in entry.shards),
        shard_records=tuple(shard.records for shard in entry.shards),
        classes=sum(1 for count in entry.labels.values() if count),
    )


def find_input(manifest: Manifest, directory: Path) -> FeatureEntry:
    """The feature that a network is given: `features` (rows of numbers) or else `image`."""
    has_rows = any(feature.name == "features" for feature in manifest.features)
    wanted = ("features", "float") if has_rows else ("image", "bytes")
    return find_feature(manifest, *wanted, directory)


def find_feature(manifest: Manifest, name: str, wanted: str, directory: Path) -> FeatureEntry:
    """The feature `name`, or an error when it is missing or of another type."""
    found = {feature.name: feature for feature in manifest.features}
    if name not in found:
        raise ShardsmithError(f"{directory} has no feature {name!r}, only {', '.join(sorted(found))}; rebuild it")
    if found[name].type != wanted:
        raise ShardsmithError(
            f"feature {name!r} of {directory} is {found[name].type}, training needs {wanted}; rebuild it"
        )
    return found[name]


def find_columns(names: Sequence[str], features: Sequence[FeatureEntry], directory: Path) -> tuple[FeatureEntry, ...]:
    """The features of these names, each of which must hold a fixed number of numbers for every record."""
    usable = {
        each.name: each
        for each in features
        if each.type != "bytes" and each.length and each.per == "record" and each.name not in GIVEN_OTHERWISE
    }
    for name in names:
        if name not in usable:
            known = ", ".join(sorted(usable)) or "none"
            raise UsageError(
                f"model.columns: {name!r} is not a column of {directory} with a fixed number of numbers; it has {known}"
            )
    return tuple(usable[name] for name in names)


def _check_labels(manifest: Manifest, directory: Path) -> None:
    kind = manifest.label_kind
    if kind == "none":
        raise ShardsmithError(
            f"{directory} has no labels (its labels.kind is none), so there is nothing to learn from or to judge by; "
            "build it with labels, or ask a trained model about it: "
            f"python -m trainer predict --dataset {directory} --model EXPORT"
        )
    find_feature(manifest, *LABEL_FEATURES[kind], directory)
    fewest = FEWEST_LABELS.get(kind, 0)
    if len(manifest.labels) < fewest:
        raise ShardsmithError(f"{directory} has {len(manifest.labels)} class(es); training needs at least {fewest}")


def find_rows(config: TrainConfig, stored: FeatureEntry) -> Rows:
    """The rows of the dataset; refuses settings that only pictures have."""
    rows = Rows(stored.length or 1)
    rows_too = {"mixup"}
    unfit = [
        f"augment.{name}"
        for name, value in config.augment
        if value != getattr(AugmentConfig(), name) and name not in rows_too
    ]
    unfit += ["model.image_size"] if config.model.image_size else []
    if unfit:
        raise UsageError(f"{', '.join(unfit)}: for pictures only, and {config.dataset} has {rows}; remove the setting")
    return rows


def find_geometry(config: TrainConfig, settings: Mapping[str, Any]) -> Geometry:
    """The input geometry from the config and the build settings in the manifest."""
    image = settings.get("image") or {}
    resize = image.get("resize") or {}
    mode, stored = resize.get("mode", "none"), stored_box(resize)
    size = config.model.image_size or stored
    if size is None:
        raise UsageError(
            f"model.image_size is not set and the dataset's pictures (resize mode {mode}) have no common size; "
            "set it, for example --set model.image_size=224"
        )
    if config.augment.shift > min(size):
        raise UsageError(f"augment.shift {config.augment.shift} is more than the picture's side, {min(size)} pixels")
    # Pictures stored with their ratio kept can fill a batch only when the longer side is cropped.
    fit_mode = mode if stored else "center_crop"
    only_jpegs = (image.get("encode") or {}).get("format") == "jpeg"
    box = _crop_box(stored, size) if config.augment.crop else size
    return Geometry(mode=fit_mode, box=box, size=size, only_jpegs=only_jpegs)


def stored_box(resize: Mapping[str, Any]) -> tuple[int, int] | None:
    """The sides (height, width) that all stored pictures have, from the build's settings; None if they differ."""
    if resize.get("mode") not in FIXED_SIZE_MODES:
        return None
    if resize.get("size") is not None:
        return int(resize["size"]), int(resize["size"])
    return int(resize["height"]), int(resize["width"])


def _crop_box(stored: tuple[int, int] | None, size: tuple[int, int]) -> tuple[int, int]:
    if stored is None:
        modes = ", ".join(FIXED_SIZE_MODES)
        raise UsageError(
            f"augment.crop needs pictures stored in one size; build with resize mode {modes}, or turn it off"
        )
    if stored[0] < size[0] or stored[1] < size[1] or stored == size:
        raise UsageError(
            f"augment.crop needs stored pictures larger than model.image_size {size[0]}x{size[1]}, "
            f"these are {stored[0]}x{stored[1]}; set a smaller model.image_size, or use augment.shift"
        )
    return stored
