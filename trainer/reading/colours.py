"""What the colours of a training picture are changed to: plain functions on uint8 pictures [height, width, 3].

Brightness, contrast, saturation and hue are linear in red, green and blue, so any number of them costs a single
multiplication of the picture by a 3x3 matrix.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.reading.seeds import Use, uniform
from trainer.reading.settings import ColourConfig

Tensor = Any
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # how much each colour adds to the grey value, as in JPEG
# Red, green and blue to brightness and two colour differences (YIQ, the television signal), in rows.
_YIQ = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def random_colours(picture: Tensor, config: ColourConfig, *, seed: Tensor) -> Tensor:
    """The picture with brightness, contrast, saturation and hue changed at random as `config` says."""
    signs = uniform(seed, Use.COLOUR, (4,)) * 2 - 1
    spans = (config.brightness, config.contrast, config.saturation)
    brightness, contrast, saturation = tf.unstack(1 + signs[:3] * spans)
    matrix = brightness * contrast * saturation_matrix(saturation) @ hue_matrix(signs[3] * config.hue)
    # Neither saturation nor hue changes what is added to all three colours alike.
    offset = (1 - contrast) * brightness * _mean_grey(picture) if config.contrast else tf.constant(0.0)
    return recolour(picture, matrix, offset)


def recolour(picture: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """Each pixel's (red, green, blue) times a matrix, plus an offset."""
    pixels = tf.reshape(tf.cast(picture, tf.float32), [-1, 3])
    return tf.reshape(to_uint8(pixels @ matrix + offset), tf.shape(picture))


def to_uint8(pixels: Tensor) -> Tensor:
    """Rounded, and cut off at 0 and 255."""
    return tf.saturate_cast(tf.round(pixels), tf.uint8)


def _mean_grey(picture: Tensor) -> Tensor:
    return tf.tensordot(tf.reduce_mean(tf.cast(picture, tf.float32), axis=[0, 1]), LUMA, 1)


def saturation_matrix(factor: Tensor) -> Tensor:
    """0 makes a picture grey, 1 leaves it as it is."""
    return factor * tf.eye(3) + (1 - factor) * np.outer(LUMA, np.ones(3, np.float32))


def hue_matrix(turns: Tensor) -> Tensor:
    """Turns the circle of colours; greys stay."""
    cos, sin = tf.cos(2 * math.pi * turns), tf.sin(2 * math.pi * turns)
    rotation = tf.reshape(tf.stack([1.0, 0.0, 0.0, 0.0, cos, sin, 0.0, -sin, cos]), [3, 3])
    to_yiq = tf.constant(_YIQ.T, tf.float32)
    return to_yiq @ rotation @ tf.constant(np.linalg.inv(_YIQ.T), tf.float32)


def brightness(picture: Tensor, factor: Tensor) -> Tensor:
    """0 makes a picture black, 1 leaves it as it is."""
    return to_uint8(tf.cast(picture, tf.float32) * factor)


def contrast(picture: Tensor, factor: Tensor) -> Tensor:
    """0 makes a picture its mean grey, 1 leaves it as it is."""
    return to_uint8(tf.cast(picture, tf.float32) * factor + (1 - factor) * tf.round(_mean_grey(picture)))


def saturation(picture: Tensor, factor: Tensor) -> Tensor:
    """0 makes a picture grey, 1 leaves it as it is."""
    return recolour(picture, saturation_matrix(factor), tf.constant(0.0))


def sharpness(picture: Tensor, factor: Tensor) -> Tensor:
    """0 makes a picture smooth, 1 leaves it as it is; its edge stays."""
    pixels = tf.cast(picture, tf.float32)
    kernel = tf.constant(np.repeat(_SMOOTH[:, :, np.newaxis, np.newaxis], 3, axis=2))
    smooth = tf.nn.depthwise_conv2d(pixels[tf.newaxis], kernel, [1, 1, 1, 1], "VALID")[0]
    blended = to_uint8(pixels[1:-1, 1:-1] * factor + tf.round(smooth) * (1 - factor))
    rows = tf.concat([picture[1:-1, :1], blended, picture[1:-1, -1:]], axis=1)
    return tf.concat([picture[:1], rows, picture[-1:]], axis=0)


def invert(picture: Tensor) -> Tensor:
    """The negative."""
    return 255 - picture


def posterize(picture: Tensor, bits: Tensor) -> Tensor:
    """Keeps the highest bits of each value."""
    mask = tf.bitwise.left_shift(tf.constant(255, tf.uint8), tf.cast(8 - bits, tf.uint8))
    return tf.bitwise.bitwise_and(picture, mask)


def solarize(picture: Tensor, threshold: Tensor) -> Tensor:
    """Inverts the values from a threshold on; 256 leaves all as they are."""
    return tf.where(tf.cast(picture, tf.int32) < threshold, picture, 255 - picture)


def autocontrast(picture: Tensor) -> Tensor:
    """Stretches each colour so that its darkest value becomes 0 and its brightest 255."""
    flat = tf.reshape(picture, [-1, 3])
    low, high = (tf.cast(ends, tf.float64) for ends in (tf.reduce_min(flat, axis=0), tf.reduce_max(flat, axis=0)))
    scale = 255 / tf.maximum(high - low, 1)
    values = tf.range(256, dtype=tf.float64)[:, tf.newaxis]
    stretched = tf.where(high > low, values * scale - low * scale, values)
    return _look_up(picture, tf.cast(tf.clip_by_value(stretched, 0, 255), tf.uint8))


def equalize(picture: Tensor) -> Tensor:
    """Spreads each colour's values so that all are about equally frequent."""
    counts = tf.reshape(tf.math.bincount(_places(picture), minlength=768, maxlength=768), [256, 3])
    highest = 255 - tf.argmax(tf.reverse(counts, [0]) > 0, output_type=tf.int32)
    most = tf.gather(tf.transpose(counts), highest, batch_dims=1)
    step = (tf.reduce_sum(counts, axis=0) - most) // 255
    spread = (tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, spread, tf.range(256)[:, tf.newaxis])
    return _look_up(picture, tf.cast(tf.clip_by_value(table, 0, 255), tf.uint8))


def _look_up(picture: Tensor, table: Tensor) -> Tensor:
    """Each value replaced by that in its colour's column of a table [256, 3]."""
    return tf.reshape(tf.gather(tf.reshape(table, [-1]), _places(picture)), tf.shape(picture))


def _places(picture: Tensor) -> Tensor:
    """Where the values stand in a flat table [256, 3]."""
    return tf.reshape(tf.cast(picture, tf.int32) * 3 + [0, 1, 2], [-1])
