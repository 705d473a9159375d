"""Everything that a build can be told, as one frozen object; nothing else sees flags, YAML or the environment."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
ResizeMode = Literal["none", "exact", "keep_ratio", "keep_ratio_largest", "center_crop", "border"]
Scaling = Literal["none", "z_score", "min_max", "buckets", "vocabulary"]


class ColumnConfig(Settings):
    """An extra column of a listing: its type in the records and how tf.Transform scales it."""

    type: Literal["int", "float", "text"]
    scale: Scaling = "none"
    buckets: Annotated[int, Field(ge=2)] = 10

    @model_validator(mode="after")
    def _scale_fits_type(self) -> "ColumnConfig":
        if self.type == "text" and self.scale not in ("none", "vocabulary"):
            raise ValueError(f"a text column cannot be scaled by {self.scale}; use vocabulary or none")
        if self.type == "float" and self.scale == "vocabulary":
            raise ValueError("a float column has no vocabulary; use type int or text, or another scale")
        return self


class SourceConfig(Settings):
    """Where the images are and how their labels are found."""

    path: str
    kind: Literal["auto", "folder", "csv", "jsonl"] = "auto"
    layout: Literal["auto", "class", "split_class"] = "auto"
    columns: dict[str, ColumnConfig] = {}


class SplitsConfig(Settings):
    """How examples are dealt to splits: a salted hash of the group or key, unless the source gives the split."""

    fractions: dict[str, Annotated[float, Field(ge=0, le=1)]] = {"train": 0.8, "validation": 0.1, "test": 0.1}
    salt: str = ""
    use_given: bool = True

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
    max_file_mb: Annotated[float, Field(gt=0)] = 100
    max_megapixels: Annotated[float, Field(gt=0)] = 200


class ShardsConfig(Settings):
    """How many shards a split gets: enough for `target_mb` each, at least `min_count`; or exactly `count`."""

    target_mb: Annotated[float, Field(gt=0)] = 128
    min_count: Positive = 1
    count: Positive | dict[str, Positive] | None = None


class TransformConfig(Settings):
    """The splits from which tf.Transform learns normalisation and vocabularies; by default train, or else all."""

    analyze: tuple[str, ...] = ()


class BuildConfig(Settings):
    """One build: a source, an output directory, and everything that shapes the bytes between them."""

    source: SourceConfig
    output: str
    name: str = "dataset"
    splits: SplitsConfig = SplitsConfig()
    image: ImageConfig = ImageConfig()
    shards: ShardsConfig = ShardsConfig()
    transform: TransformConfig = TransformConfig()
    max_reject_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0

    @field_validator("name")
    @classmethod
    def _name_fits_tfds(cls, name: str) -> str:
        # TFDS derives a Python identifier and a directory from the name, and refuses others when it opens the dataset.
        if not (name.isidentifier() and name == name.lower()):
            raise ValueError(f"{name!r} must be lower-case letters, digits and underscores, not starting with a digit")
        return name

    def byte_shaping(self) -> dict[str, Any]:
        """The settings that decide what the shards contain: not where they come from or where they go."""
        return self.model_dump(mode="json", exclude={"output": True, "max_reject_fraction": True, "source": {"path"}})
