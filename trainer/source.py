"""The dataset as the trainer sees it: opened and checked against the config before TensorFlow is imported."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shards.errors import ShardsmithError, UsageError
from shards.manifest import Manifest, SplitEntry, read_manifest
from shards.records import read_index
from trainer.config import TrainConfig

TRANSFORM_FN = "transform_fn"
FEATURE_TYPES = {"image": "bytes", "label": "int64"}
FIXED_SIZE_MODES = ("exact", "center_crop", "border")
INDEXES_IN_MEMORY = 1024


@dataclass(frozen=True)
class Geometry:
    """How a picture of any size becomes the model's input of `size` (height, width).

    The picture is first brought to `box` by `mode`; a `box` larger than `size` then loses its margins.
    """

    mode: str
    box: tuple[int, int]
    size: tuple[int, int]


@dataclass(frozen=True)
class Split:
    """One split's files: paths, indexes and record counts, in manifest order."""

    name: str
    paths: tuple[str, ...]
    indexes: tuple[str, ...]
    shard_records: tuple[int, ...]

    @property
    def records(self) -> int:
        """Examples in the split."""
        return sum(self.shard_records)

    @cached_property
    def _rows(self) -> Any:
        return lru_cache(maxsize=INDEXES_IN_MEMORY)(self._read_rows)

    def _read_rows(self, shard: int) -> npt.NDArray[np.int64]:
        path, expected = self.indexes[shard], self.shard_records[shard]
        try:
            rows = read_index(Path(path))
        except (OSError, ValueError) as error:
            raise ShardsmithError(f"index {path} cannot be read: {error}; restore it or rebuild the dataset") from error
        if len(rows) != expected:
            raise ShardsmithError(
                f"index {path} lists {len(rows)} records, the manifest {expected}; rebuild the dataset"
            )
        return rows

    def extent(self, shard: int, first: int, count: int) -> tuple[int, int]:
        """Where `count` records from `first` on lie in the shard's file: (offset, bytes)."""
        rows = self._rows(shard)[first : first + count]
        return int(rows[0, 0]), int(rows[:, 1].sum())


@dataclass(frozen=True)
class Source:
    """A complete dataset and the geometry in which its pictures are used."""

    directory: Path
    manifest: Manifest
    geometry: Geometry

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in id order."""
        return self.manifest.labels

    @property
    def transform_directory(self) -> Path:
        """Where the tf.Transform SavedModel is."""
        return self.directory / TRANSFORM_FN

    def split(self, name: str) -> Split:
        """The files of a split that has examples."""
        entry = self.manifest.split(name)
        if not entry.records:
            raise ShardsmithError(
                f"split {name!r} of {self.directory} has no examples; choose another split or rebuild"
            )
        return Split(
            name=name,
            paths=tuple(str(self.directory / shard.path) for shard in entry.shards),
            indexes=tuple(str(self.directory / shard.index) for shard in entry.shards),
            shard_records=tuple(shard.records for shard in entry.shards),
        )

    def digest(self, split: str) -> str:
        """A fingerprint of a split's content and of the label ids, equal wherever the dataset is copied to."""
        parts = [shard.sha256 for shard in self.manifest.split(split).shards]
        return hashlib.sha256("\n".join([*parts, *self.labels]).encode()).hexdigest()


def open_source(config: TrainConfig) -> Source:
    """Opens the dataset; refuses one that cannot be trained on, with what to do about it."""
    directory = Path(config.dataset)
    manifest = read_manifest(directory)
    _check_features(manifest, directory)
    if len(manifest.labels) < 2:
        raise ShardsmithError(f"{directory} has {len(manifest.labels)} class(es); training needs at least 2")
    if not (directory / TRANSFORM_FN / "saved_model.pb").is_file():
        raise ShardsmithError(f"{directory} has no {TRANSFORM_FN}: it is incomplete; restore it or rebuild the dataset")
    return Source(directory=directory, manifest=manifest, geometry=find_geometry(config, manifest.settings))


def check_training(config: TrainConfig, source: Source, *, workers: int) -> None:
    """Refuses numbers that do not fit together: batch, lanes, workers and examples."""
    config.order.check_workers(workers)
    _check_splits(config, source.manifest)
    split: SplitEntry = source.manifest.split(config.splits.train)
    if split.records < config.global_batch:
        most = split.records // config.input.lanes * config.input.lanes
        remedy = f"set global_batch to at most {most}" if most else "set both global_batch and input.lanes lower"
        raise UsageError(
            f"split {split.name!r} has {split.records} examples, fewer than one global batch of {config.global_batch}; "
            f"{remedy} (it must be a multiple of input.lanes, which is {config.input.lanes})"
        )
    if config.evaluate_every_epochs is not None:
        source.split(config.splits.evaluate)


def _check_splits(config: TrainConfig, manifest: Manifest) -> None:
    names = [split.name for split in manifest.splits]
    asked = {"train": config.splits.train}
    if config.evaluate_every_epochs is not None:
        asked["evaluate"] = config.splits.evaluate
    for role, name in asked.items():
        if name not in names:
            raise UsageError(
                f"the dataset has no split {name!r} to {role}; it has {', '.join(names)}; "
                f"choose one with --set splits.{role}=NAME"
            )


def check_replicas(config: TrainConfig, replicas: int) -> None:
    """Refuses a global batch that the replicas cannot share evenly."""
    if config.global_batch % replicas:
        raise UsageError(
            f"global_batch {config.global_batch} cannot be shared by {replicas} replicas; "
            f"choose a multiple of {replicas}"
        )


def _check_features(manifest: Manifest, directory: Path) -> None:
    found = {feature.name: feature.type for feature in manifest.features}
    for name, wanted in FEATURE_TYPES.items():
        if name not in found:
            raise ShardsmithError(f"{directory} has no feature {name!r}, only {', '.join(sorted(found))}; rebuild it")
        if found[name] != wanted:
            raise ShardsmithError(
                f"feature {name!r} of {directory} is {found[name]}, training needs {wanted}; rebuild it"
            )


def find_geometry(config: TrainConfig, settings: Mapping[str, Any]) -> Geometry:
    """The input geometry from the config and the build settings in the manifest."""
    resize = (settings.get("image") or {}).get("resize") or {}
    mode, stored = resize.get("mode", "none"), _stored_box(resize)
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
    return Geometry(mode=fit_mode, box=_crop_box(stored, size) if config.augment.crop else size, size=size)


def _stored_box(resize: Mapping[str, Any]) -> tuple[int, int] | None:
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
