"""What can be set about reading: splits, the order of records, and random changes to pictures."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Share0 = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[float, Field(gt=0)]
STRONGEST = 10  # of a policy
Sampling = Literal["natural", "balanced"]
CacheName = Literal["none", "memory", "disk"]


class SplitsConfig(Settings):
    """Which splits of the dataset are learned from and judged on."""

    train: str = "train"
    evaluate: str = "validation"


class InputConfig(Settings):
    """How the training split is read; `shards.order` explains lanes and runs. `shuffle_records` are held encoded.

    An epoch draws every example once if `sampling` is natural; if it is balanced, every class equally often.
    `cache` keeps copies of the shards nearby, so that slow storage is read once.
    """

    lanes: Positive = 16
    run: Positive = 32
    shuffle_records: Positive = 4096
    sampling: Sampling = "natural"
    prefetch: Positive = 2  # batches kept ready for each worker
    cache: CacheName = "none"
    cache_folder: str | None = None  # of a cache on disk; the system's temporary directory if not set
    cache_gb: Annotated[float, Field(gt=0)] | None = None  # the most that a cache may hold; what is free if not set

    @model_validator(mode="after")
    def _folder_is_for_disk(self) -> "InputConfig":
        if self.cache_folder is not None and self.cache == "memory":
            raise ValueError("cache_folder is for cache: disk; a cache in memory has none")
        return self


class ResizedCropConfig(Settings):
    """A window with a share `area` of the picture and a `ratio` of width to height between these bounds."""

    area: tuple[Share, Share] = (0.08, 1.0)
    ratio: tuple[Ratio, Ratio] = (0.75, 4 / 3)

    @model_validator(mode="after")
    def _in_order(self) -> "ResizedCropConfig":
        for name, (low, high) in (("area", self.area), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"{name} goes from its lower to its upper bound, not from {low} to {high}")
        return self


class ColourConfig(Settings):
    """How far colours change: 0.4 takes 60 to 140 % of the brightness; a hue of 0.1 turns up to a tenth of a circle."""

    brightness: Share0 = 0.0
    contrast: Share0 = 0.0
    saturation: Share0 = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0


class PolicyConfig(Settings):
    """As many `operations` as RandAugment applies to each picture, of a `strength` from 0 to 10."""

    operations: Positive = 2
    strength: Annotated[float, Field(ge=0, le=STRONGEST)] = 9.0


class AugmentConfig(Settings):
    """Random changes to training pictures, each decided by (seed, epoch, record) alone.

    `crop` cuts the model's image size out of larger stored pictures: anywhere in training, in the middle otherwise.
    `resized_crop` cuts any window out of stored pictures of any size and brings it to the model's image size; otherwise
    pictures are seen as without it. `cutout` is a grey box, its sides in shares of the picture's. `mixup` and `cutmix`
    blend an example with another, or set a box of the other into it, in shares drawn from Beta(value, value); with
    both, each example gets one of them by chance.
    """

    flip: bool = False
    flip_vertical: bool = False
    shift: Annotated[int, Field(ge=0)] = 0  # pixels, in each direction
    crop: bool = False
    resized_crop: ResizedCropConfig | None = None
    policy: PolicyConfig | None = None
    colour: ColourConfig = ColourConfig()
    cutout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0
    cutmix: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _one_crop(self) -> "AugmentConfig":
        if self.crop and self.resized_crop:
            raise ValueError("crop and resized_crop both choose the window; remove one of them")
        return self

    @property
    def mixes(self) -> str:
        """What mixes examples, by the names of the settings; empty if nothing does."""
        return " and ".join(f"augment.{name}" for name in ("mixup", "cutmix") if getattr(self, name))
