"""Everything that a build can be told, as one frozen object; nothing else sees flags, YAML or the environment."""

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipelines.reasons import Reason
from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
PositiveNumber = Annotated[float, Field(gt=0)]
ResizeMode = Literal["none", "exact", "keep_ratio", "keep_ratio_largest", "center_crop", "border"]
Scaling = Literal["none", "z_score", "min_max", "buckets", "vocabulary"]
SourceKind = Literal[
    "auto", "folder", "csv", "tsv", "jsonl", "parquet", "npy", "npz", "idx", "tar", "zip", "tfrecord", "python",
]  # fmt: skip
LabelKind = Literal["single", "multi", "none", "regression"]
PATTERN_GROUPS = ("label", "split", "group", "id")
# What sources call their splits. A split that is neither here nor in the config is more likely a slip than a wish.
SPLIT_NAMES = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing", "holdout"}
)
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
ALL = "all"
DEFAULT_BUCKETS, DEFAULT_SEPARATOR, DEFAULT_DISTANCE = 10, "|", 16
RESERVED_COLUMNS = frozenset({
    "image", "features", "label", "label_name", "target", "key", "height", "width", "boxes", "path", "split", "group",
    "id", "pixel", "pixel_square", "input",
})  # fmt: skip


class ColumnConfig(Settings):
    """An extra column: its type in the records and how tf.Transform scales it.

    `list` columns hold any number of values; `per: box` columns hold one value per box and lose those of dropped boxes.
    In a text, such as a cell of a CSV file, several values are a JSON list: `[1, 2]`.
    """

    type: Literal["int", "float", "text"]
    scale: Scaling = "none"
    buckets: Annotated[int, Field(ge=2)] = DEFAULT_BUCKETS
    list: bool = False
    per: Literal["input", "box"] = "input"

    @property
    def is_scalar(self) -> bool:
        """Whether each record has exactly one value."""
        return not self.list and self.per == "input"

    @model_validator(mode="after")
    def _scale_fits_type(self) -> "ColumnConfig":
        if self.type == "text" and self.scale not in ("none", "vocabulary"):
            raise ValueError(f"a text column cannot be scaled by {self.scale}; use vocabulary or none")
        if self.type == "float" and self.scale == "vocabulary":
            raise ValueError("a float column has no vocabulary; use type int or text, or another scale")
        if self.scale != "none" and not self.is_scalar:
            raise ValueError(f"a column of several values cannot be scaled by {self.scale}; use none")
        if self.list and self.per == "box":
            raise ValueError("a column with per: box has one value for each box; remove list")
        if self.buckets != DEFAULT_BUCKETS and self.scale != "buckets":
            raise ValueError(f"buckets are for scale buckets, not for {self.scale}; remove them, or set the scale")
        return self


class SourceConfig(Settings):
    """Where inputs are: one folder, listing, archive, array, table or function, or a glob of them.

    `fields` maps our names (path, image, features, label, split, group, id, boxes, the columns) to the source's own.
    """

    path: str
    kind: SourceKind = "auto"
    name: Annotated[str, Field(pattern=r"^[\w-]*$")] = ""  # stands before the keys, and in the accounts
    layout: Literal["auto", "class", "split_class", "flat", "webdataset"] = "auto"  # of folders and archives
    label_pattern: str = ""  # of flat ones: a regular expression with groups called label, split, group, id
    fields: dict[str, str] = {}
    root: str = ""  # what relative paths in a listing are relative to; by default the listing's own folder
    split: str = ""  # the split of every input
    labels_path: str = ""  # where labels lie in a file of their own (npy, IDX)
    arguments: dict[str, Any] = {}  # of a python function

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("label_pattern")
    @classmethod
    def _pattern_compiles(cls, pattern: str) -> str:
        try:
            groups = set(re.compile(pattern).groupindex)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        if pattern and not groups <= set(PATTERN_GROUPS):
            unknown = sorted(groups - set(PATTERN_GROUPS))[0]
            raise ValueError(f"group {unknown!r} is not known; groups are called {', '.join(PATTERN_GROUPS)}")
        return pattern


class LabelsConfig(Settings):
    """What is learnt: one name per input, several, none at all, or `length` numbers (regression).

    `names` is a text file with a class name per line: integer labels then are line numbers from 0, and the ids keep its
    order. `separator` cuts a text into several labels or numbers; a JSON list in a text is read too.
    """

    kind: LabelKind = "single"
    names: str = ""
    separator: Annotated[str, Field(min_length=1)] = DEFAULT_SEPARATOR
    length: Positive = 1

    @model_validator(mode="after")
    def _fields_fit_kind(self) -> "LabelsConfig":
        if self.names and self.kind in ("none", "regression"):
            raise ValueError(f"labels of kind {self.kind} have no names; remove labels.names")
        if self.length != 1 and self.kind != "regression":
            raise ValueError("labels.length is the number of regression targets; set labels.kind to regression")
        if self.separator != DEFAULT_SEPARATOR and self.kind in ("none", "single"):
            raise ValueError(f"labels of kind {self.kind} are not cut; remove labels.separator, or set labels.kind")
        return self


class BoxesConfig(Settings):
    """Bounding boxes in the field `boxes`, four numbers each; records hold ymin, xmin, ymax, xmax as fractions.

    The field is a list of boxes or one flat list of numbers; in a text, such as a cell of a CSV file, a JSON list.
    `frame` tells whether the coordinates refer to the file's own pixels or to the picture after its Exif orientation. A
    box is dropped when no more than `min_visible` of its area remains inside the picture.
    """

    format: Literal["xyxy", "xywh", "yxyx", "cxcywh"] = "xyxy"
    unit: Literal["pixels", "fraction"] = "pixels"
    frame: Literal["stored", "upright"] = "stored"
    min_visible: Annotated[float, Field(ge=0, lt=1)] = 0.0


class SplitsConfig(Settings):
    """How examples are dealt to splits: a salted hash of the group or key, unless the source gives the split.

    A source may give the splits of `fractions`, the usual names (train, val, test, ...) and those in `given`.
    `stratify` keeps to the fractions in every class, to within one input or the largest group; of several labels the
    rarest counts. `fail_on_leak` fails a build in which an example, or a group, is in two splits.
    """

    fractions: dict[str, Fraction] = {"train": 0.8, "validation": 0.1, "test": 0.1}
    salt: str = ""
    use_given: bool = True
    given: tuple[str, ...] = ()
    stratify: bool = False
    fail_on_leak: bool = False

    def knows(self, name: str) -> bool:
        """Whether a source may give this split."""
        return name in self.fractions or name in self.given or name.lower() in SPLIT_NAMES

    @field_validator("fractions")
    @classmethod
    def _sum_to_one(cls, fractions: dict[str, float]) -> dict[str, float]:
        if abs(sum(fractions.values()) - 1) > 1e-6:
            raise ValueError(f"fractions must sum to 1, these sum to {sum(fractions.values()):g}")
        for name in fractions:
            if not name.isidentifier():
                raise ValueError(f"split name {name!r} must be letters, digits and underscores")
        return fractions


class ResizeConfig(Settings):
    """The stored size: `size` is one side for the ratio modes and a square for the others; or `width` and `height`."""

    mode: ResizeMode = "none"
    size: Positive | None = None
    width: Positive | None = None
    height: Positive | None = None
    only_if_larger: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return parse_resize(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _size_fits_mode(self) -> "ResizeConfig":
        one, two = self.size is not None, self.width is not None and self.height is not None
        if (self.width is None) != (self.height is None):
            raise ValueError("width and height come together")
        if self.mode == "none" and (one or two or self.only_if_larger):
            raise ValueError("mode none takes no size; choose a mode such as center_crop")
        if self.mode.startswith("keep_ratio") and not (one and not two):
            raise ValueError(f"mode {self.mode} needs size, the length of one side in pixels")
        if self.mode in ("exact", "center_crop", "border") and one == two:
            raise ValueError(f"mode {self.mode} needs either size, or width and height")
        return self

    @property
    def box(self) -> tuple[int, int]:
        """The target (height, width)."""
        if self.width is not None and self.height is not None:
            return self.height, self.width
        assert self.size is not None, "mode none has no box"
        return self.size, self.size


def parse_resize(text: str) -> dict[str, Any]:
    """Reads `center_crop:256`, `exact:320x240` or `keep_ratio:256:only_if_larger` (sizes are width x height)."""
    mode, *rest = text.split(":")
    values: dict[str, Any] = {"mode": mode}
    if rest and rest[-1] == "only_if_larger":
        values["only_if_larger"] = bool(rest.pop())
    sides = rest.pop(0).split("x") if rest else []
    if rest or len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise ValueError(f"resize {text!r} is not of the form MODE:SIZE or MODE:WIDTHxHEIGHT[:only_if_larger]")
    return values | dict(zip(("size",) if len(sides) == 1 else ("width", "height"), map(int, sides), strict=False))


class EncodeConfig(Settings):
    """How pictures are stored.

    `original` keeps the file's own bytes when it is a JPEG or PNG that needs no change (8-bit RGB without alpha,
    upright, not resized); other pictures from PNG, GIF and BMP are stored as PNG, from JPEG and WebP as JPEG.
    """

    format: Literal["jpeg", "png", "original"] = "jpeg"
    quality: Annotated[int, Field(ge=1, le=100)] = 95


class ImageConfig(Settings):
    """What happens to each picture between file and record."""

    resize: ResizeConfig = ResizeConfig()
    encode: EncodeConfig = EncodeConfig()
    truncated: Literal["reject", "keep"] = "reject"  # JPEG files that end early; kept, the missing part is grey
    max_file_mb: PositiveNumber = 100
    max_megapixels: PositiveNumber = 100
    max_frames: Positive = 1000
    max_aspect: Annotated[float, Field(ge=1)] = 100
    max_seconds: PositiveNumber = 60
    max_memory_mb: Annotated[int, Field(ge=256)] = 2048  # of one decoder process


class ShardsConfig(Settings):
    """How many shards a split gets: enough for `target_mb` each, at least `min_count`; or exactly `count`."""

    target_mb: Annotated[float, Field(gt=0)] = 128
    min_count: Positive = 1
    count: Positive | dict[str, Positive] | None = None


class DedupeConfig(Settings):
    """Which inputs count as duplicates, and what becomes of them.

    `exact` finds the same bytes; `near` also pictures whose perceptual hashes of 256 bits (`pictures.perceptual`)
    differ in at most `distance` of them. `keep_first` keeps the first of those that are alike; `drop_conflicts` does
    too, but leaves all of them out if their labels or targets differ; `report` keeps all, on one side of the splits.
    """

    find: Literal["none", "exact", "near"] = "none"
    distance: Annotated[int, Field(ge=0, le=31)] = DEFAULT_DISTANCE
    policy: Literal["keep_first", "drop_conflicts", "report"] = "keep_first"

    @property
    def limit(self) -> int:
        """In how many bits duplicates may differ."""
        return self.distance if self.find == "near" else 0

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"find": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fields_fit_find(self) -> "DedupeConfig":
        if self.distance != DEFAULT_DISTANCE and self.find != "near":
            raise ValueError(f"distance is for find near, not for {self.find}; remove it, or set dedupe.find to near")
        if self.policy != "keep_first" and self.find == "none":
            raise ValueError("policy needs duplicates to be found; set dedupe.find to exact or near")
        return self


class TransformConfig(Settings):
    """The splits from which tf.Transform learns normalisation and vocabularies; by default train, or else all."""

    analyze: tuple[str, ...] = ()


class BuildConfig(Settings):
    """One build: one source or several, an output directory, and everything that shapes the bytes between them.

    The two budgets are one number, or numbers by reason: `{truncated: 10, all: 50}`. Every reject needs a limit that
    covers it, and every limit must hold; if nothing is set, nothing may be rejected.
    """

    source: SourceConfig | None = None
    sources: tuple[SourceConfig, ...] = ()
    output: str
    name: str = "dataset"
    labels: LabelsConfig = LabelsConfig()
    columns: dict[str, ColumnConfig] = {}
    boxes: BoxesConfig | None = None
    splits: SplitsConfig = SplitsConfig()
    image: ImageConfig = ImageConfig()
    shards: ShardsConfig = ShardsConfig()
    dedupe: DedupeConfig = DedupeConfig()
    transform: TransformConfig = TransformConfig()
    max_reject_fraction: Fraction | dict[str, Fraction] | None = None
    max_rejects: Count | dict[str, Count] | None = None
    quarantine: bool = False

    @property
    def all_sources(self) -> tuple[SourceConfig, ...]:
        """The sources, one or more."""
        return self.sources or ((self.source,) if self.source else ())

    def source_name(self, number: int) -> str:
        """What the accounts call a source."""
        return self.all_sources[number].name or "default"

    @property
    def scalar_columns(self) -> dict[str, ColumnConfig]:
        """The columns of one value each, which tf.Transform analyses."""
        return {name: column for name, column in self.columns.items() if column.is_scalar}

    @model_validator(mode="after")
    def _sources_fit(self) -> "BuildConfig":
        if (self.source is None) == (not self.sources):
            raise ValueError("set either source (or --source PATH), or sources with a list of them")
        names = [source.name for source in self.sources]
        if twice := [name for name in names if names.count(name) > 1]:
            what = f"{twice[0]!r} is the name of several" if twice[0] else "several have no name"
            raise ValueError(f"sources: {what}; give each a name of its own, so that their keys cannot meet")
        return self

    @model_validator(mode="after")
    def _columns_fit(self) -> "BuildConfig":
        if clash := sorted(RESERVED_COLUMNS & set(self.columns)):
            raise ValueError(
                f"columns: {clash[0]!r} is a name of our own; choose another and map it with source.fields"
            )
        if self.boxes is None and (per_box := [name for name, each in self.columns.items() if each.per == "box"]):
            raise ValueError(f"columns.{per_box[0]} has a value per box, but there are no boxes; add `boxes: {{}}`")
        return self

    @model_validator(mode="after")
    def _classes_to_stratify(self) -> "BuildConfig":
        if self.splits.stratify and self.labels.kind in ("none", "regression"):
            raise ValueError(f"splits.stratify needs classes, labels of kind {self.labels.kind} have none; remove it")
        return self

    @field_validator("max_reject_fraction", "max_rejects")
    @classmethod
    def _known_reasons(cls, budget: Any) -> Any:
        known = [ALL, *(reason.value for reason in Reason)]
        if isinstance(budget, dict) and (unknown := [name for name in budget if name not in known]):
            near = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"reasons are {', '.join(known)}"
            raise ValueError(f"unknown reason {unknown[0]!r}; {hint}")
        return budget

    @field_validator("name")
    @classmethod
    def _name_fits_tfds(cls, name: str) -> str:
        # TFDS derives a Python identifier and a directory from the name, and refuses others when it opens the dataset.
        if not (name.isidentifier() and name == name.lower()):
            raise ValueError(f"{name!r} must be lower-case letters, digits and underscores, not starting with a digit")
        return name

    def byte_shaping(self) -> dict[str, Any]:
        """The settings that decide what the shards contain: not where they come from or where they go."""
        values = self.model_dump(mode="json", exclude=set(_NOT_SHAPING))
        places = {"path", "root", "labels_path", "arguments"}  # arguments may hold places too
        values["sources"] = [source.model_dump(mode="json", exclude=places) for source in self.all_sources]
        values["labels"].pop("names")  # the names themselves are in the manifest
        values["splits"].pop("fail_on_leak")
        return values


_NOT_SHAPING = ("output", "source", "max_reject_fraction", "max_rejects", "quarantine")
