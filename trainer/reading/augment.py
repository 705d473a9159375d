"""Random changes to training pictures, one after another: stateless, so that the record's seed decides every pixel.

What is not switched on is no part of the graph. Pictures stay uint8 between the changes.
"""

from typing import Any

from trainer.reading.colours import random_colours
from trainer.reading.crops import (
    cut_window,
    draw_windows,
    random_cutout,
    random_flip,
    random_resized_window,
    random_shift,
    random_vertical_flip,
)
from trainer.reading.images import decode, fit
from trainer.reading.policy import random_policy
from trainer.reading.settings import AugmentConfig, ColourConfig
from trainer.reading.source import Geometry

Tensor = Any


def prepare_training(
    data: Tensor, geometry: Geometry, config: AugmentConfig, *, seed: Tensor, drawn: dict[str, Tensor] | None = None
) -> Tensor:
    """Encoded bytes as the model's uint8 input, changed at random as `config` says.

    `drawn` is what `draw_windows` gives for the seed, if that has been done already.
    """
    if config.resized_crop:
        picture = random_resized_window(data, geometry.size, config.resized_crop, seed=seed)
    elif geometry.box != geometry.size:
        picture = cut_window(data, drawn or draw_windows(seed, geometry), geometry)
    else:
        picture = fit(decode(data), geometry.mode, box=geometry.box)
    return augment(picture, config, seed=seed)


def augment(picture: Tensor, config: AugmentConfig, *, seed: Tensor) -> Tensor:
    """A picture of the model's size, changed at random as `config` says."""
    if config.shift:
        picture = random_shift(picture, config.shift, seed=seed)
    if config.flip:
        picture = random_flip(picture, seed=seed)
    if config.flip_vertical:
        picture = random_vertical_flip(picture, seed=seed)
    if config.policy:
        picture = random_policy(picture, config.policy, seed=seed)
    if config.colour != ColourConfig():
        picture = random_colours(picture, config.colour, seed=seed)
    if config.cutout:
        picture = random_cutout(picture, config.cutout, seed=seed)
    return picture
