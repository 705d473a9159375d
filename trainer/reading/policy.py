"""A random policy like RandAugment: some operations, drawn for each picture, all of one strength.

An operation takes a uint8 picture and a level from -1 to 1; level 0 of those that have levels leaves the picture as it
is. Only those that are drawn are computed.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.reading import colours
from trainer.reading.seeds import Use, uniform
from trainer.reading.settings import STRONGEST, PolicyConfig

Tensor = Any
Operation = Callable[[Tensor, Tensor], Tensor]
GREY = 128.0  # what comes in from outside of a picture

# At the greatest strength:
MOST_TURN = math.pi / 6
MOST_SHEAR = 0.3
MOST_MOVE = 0.3  # of the picture's side
MOST_CHANGE = 0.9  # of brightness, contrast, saturation and sharpness
FEWEST_BITS = 4


def rotate(picture: Tensor, level: Tensor) -> Tensor:
    """Turns the picture about its middle."""
    cos, sin = tf.cos(level * MOST_TURN), tf.sin(level * MOST_TURN)
    return _project(picture, [[cos, -sin], [sin, cos]])


def shear_x(picture: Tensor, level: Tensor) -> Tensor:
    """Moves rows to the side, the farther the farther they are from the middle."""
    return _project(picture, [[1.0, level * MOST_SHEAR], [0.0, 1.0]])


def shear_y(picture: Tensor, level: Tensor) -> Tensor:
    """Moves columns up and down, the farther the farther they are from the middle."""
    return _project(picture, [[1.0, 0.0], [level * MOST_SHEAR, 1.0]])


def translate_x(picture: Tensor, level: Tensor) -> Tensor:
    """Moves the picture to the side, by whole pixels."""
    return _project(picture, _STRAIGHT, move=(tf.round(level * MOST_MOVE * picture.shape[1]), 0.0))


def translate_y(picture: Tensor, level: Tensor) -> Tensor:
    """Moves the picture up or down, by whole pixels."""
    return _project(picture, _STRAIGHT, move=(0.0, tf.round(level * MOST_MOVE * picture.shape[0])))


_STRAIGHT = [[1.0, 0.0], [0.0, 1.0]]


def _project(picture: Tensor, matrix: list[list[Any]], move: tuple[Any, Any] = (0.0, 0.0)) -> Tensor:
    """Gives each pixel at (x, y) from the middle the colour at matrix * (x, y) + move."""
    height, width, _ = picture.shape
    x, y = (width - 1) / 2, (height - 1) / 2
    (a, b), (c, d) = matrix
    rows = [a, b, x - a * x - b * y + move[0], c, d, y - c * x - d * y + move[1], 0.0, 0.0]
    projected = tf.raw_ops.ImageProjectiveTransformV3(
        images=picture[tf.newaxis],
        transforms=[tf.stack([tf.cast(number, tf.float32) for number in rows])],
        output_shape=[height, width],
        fill_value=GREY,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(projected[0], picture.shape)


def _factor(level: Tensor) -> Tensor:
    return 1 + MOST_CHANGE * level


def posterize(picture: Tensor, level: Tensor) -> Tensor:
    """Keeps fewer bits, whatever the level's sign."""
    return colours.posterize(picture, 8 - tf.round(tf.abs(level) * (8 - FEWEST_BITS)))


def solarize(picture: Tensor, level: Tensor) -> Tensor:
    """Inverts bright values, whatever the level's sign: all of them at the greatest strength."""
    return colours.solarize(picture, tf.cast(tf.round(256 * (1 - tf.abs(level))), tf.int32))


LEVELLED: dict[str, Operation] = {
    "rotate": rotate,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "brightness": lambda picture, level: colours.brightness(picture, _factor(level)),
    "contrast": lambda picture, level: colours.contrast(picture, _factor(level)),
    "saturation": lambda picture, level: colours.saturation(picture, _factor(level)),
    "sharpness": lambda picture, level: colours.sharpness(picture, _factor(level)),
    "posterize": posterize,
    "solarize": solarize,
}
WHOLE: dict[str, Operation] = {  # these have no levels
    "invert": lambda picture, _: colours.invert(picture),
    "autocontrast": lambda picture, _: colours.autocontrast(picture),
    "equalize": lambda picture, _: colours.equalize(picture),
}
OPERATIONS = LEVELLED | WHOLE


def random_policy(picture: Tensor, config: PolicyConfig, *, seed: Tensor) -> Tensor:
    """The picture after `operations` drawn operations, each at the config's strength in a random direction."""
    for number in range(config.operations):
        chosen, side = tf.unstack(uniform(seed, Use.POLICY + number, (2,)))
        level = tf.where(side < 0.5, -1.0, 1.0) * (config.strength / STRONGEST)
        picture = _apply(picture, tf.cast(chosen * len(OPERATIONS), tf.int32), level)
    return picture


def _apply(picture: Tensor, chosen: Tensor, level: Tensor) -> Tensor:
    branches = [_branch(operation, picture, level) for operation in OPERATIONS.values()]
    return tf.ensure_shape(tf.switch_case(chosen, branches), picture.shape)


def _branch(operation: Operation, picture: Tensor, level: Tensor) -> Callable[[], Tensor]:
    return lambda: operation(picture, level)
