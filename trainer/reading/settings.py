"""What can be set about reading: splits, the order of records, and random changes to pictures."""

from typing import Annotated, Literal

from pydantic import Field

from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Sampling = Literal["natural", "balanced"]


class SplitsConfig(Settings):
    """Which splits of the dataset are learned from and judged on."""

    train: str = "train"
    evaluate: str = "validation"


class InputConfig(Settings):
    """How the training split is read; `shards.order` explains lanes and runs. `shuffle_records` are held encoded.

    An epoch draws every example once if `sampling` is natural; if it is balanced, every class equally often.
    """

    lanes: Positive = 16
    run: Positive = 32
    shuffle_records: Positive = 4096
    sampling: Sampling = "natural"
    prefetch: Positive = 2  # batches kept ready for each worker


class AugmentConfig(Settings):
    """Random changes to training pictures, each decided by (seed, epoch, record) alone.

    `crop` cuts the model's image size out of larger stored pictures: anywhere in training, in the middle otherwise.
    """

    flip: bool = False
    shift: Annotated[int, Field(ge=0)] = 0  # pixels, in each direction
    crop: bool = False
