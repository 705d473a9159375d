"""Encoded pictures to uint8 tensors of the model's size: the same functions in training, evaluation and serving."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.reading.source import Geometry

Tensor = Any
ACCURATE = "INTEGER_ACCURATE"  # as the build decodes; the default of TensorFlow is not
LANCZOS = 4  # neighbours on each side


def decode(data: Tensor) -> Tensor:
    """The picture in JPEG, PNG, GIF (first frame), BMP or WebP bytes as uint8 RGB [height, width, 3]."""
    picture = tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.io.decode_jpeg(data, channels=3, dct_method=ACCURATE),
        lambda: tf.io.decode_image(data, channels=3, expand_animations=False),
    )
    return tf.ensure_shape(picture, [None, None, 3])


def prepare(data: Tensor, geometry: Geometry) -> Tensor:
    """Encoded bytes as the model's uint8 input, without anything random."""
    return place(decode(data), geometry)


def place(picture: Tensor, geometry: Geometry) -> Tensor:
    """A picture of any size as the model's input."""
    return middle(fit(picture, geometry.mode, box=geometry.box), geometry.size)


def fit(picture: Tensor, mode: str, *, box: tuple[int, int]) -> Tensor:
    """The picture brought to `box` (height, width) as the build does it; one of this size already passes untouched."""
    fitted = tf.cond(
        tf.reduce_all(tf.equal(tf.shape(picture)[:2], box)), lambda: picture, lambda: _FITTERS[mode](picture, box)
    )
    return tf.ensure_shape(fitted, [*box, 3])


def middle(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """The central window of `size`."""
    top, left = ((side - wanted) // 2 for side, wanted in zip(picture.shape[:2], size, strict=True))
    return picture[top : top + size[0], left : left + size[1]]


def _exact(picture: Tensor, box: tuple[int, int]) -> Tensor:
    return _scale(picture, tf.constant(box))


def _center_crop(picture: Tensor, box: tuple[int, int]) -> Tensor:
    covering = _scale(picture, _same_ratio(picture, box, cover=True))
    top, left = tf.unstack((tf.shape(covering)[:2] - box) // 2)
    return covering[top : top + box[0], left : left + box[1]]


def _border(picture: Tensor, box: tuple[int, int]) -> Tensor:
    inside = _scale(picture, _same_ratio(picture, box, cover=False))
    before = (box - tf.shape(inside)[:2]) // 2
    after = box - tf.shape(inside)[:2] - before
    margins = tf.concat([tf.stack([before, after], axis=1), [[0, 0]]], axis=0)
    return tf.pad(inside, margins, constant_values=tf.constant(255, tf.uint8))  # white


_FITTERS = {"exact": _exact, "center_crop": _center_crop, "border": _border}


def _same_ratio(picture: Tensor, box: tuple[int, int], *, cover: bool) -> Tensor:
    """The sides of the picture scaled, with its ratio, to cover `box` or to fit inside it; a half rounds up."""
    height, width = tf.unstack(tf.cast(tf.shape(picture)[:2], tf.int64))
    by_height = [box[0], _scaled_side(width, box[0], height)]
    by_width = [_scaled_side(height, box[1], width), box[1]]
    taller = box[0] * width >= box[1] * height if cover else box[0] * width <= box[1] * height
    return tf.cast(tf.where(taller, tf.stack(by_height), tf.stack(by_width)), tf.int32)


def _scaled_side(side: Tensor, numerator: int, denominator: Tensor) -> Tensor:
    return tf.maximum((2 * side * numerator + denominator) // (2 * denominator), 1)


def _scale(picture: Tensor, sides: Tensor) -> Tensor:
    """Shrinks by averaging areas, then enlarges with Lanczos: one side may shrink while the other grows."""
    shrunk = resample(picture, tf.minimum(sides, tf.shape(picture)[:2]), tf.image.ResizeMethod.AREA)
    return _unless_equal(shrunk, sides, _enlarge)


def resample(picture: Tensor, sides: Tensor, method: str) -> Tensor:
    """The picture with these sides, rounded to uint8; one that has them already passes untouched."""
    return _unless_equal(picture, sides, lambda *given: tf.image.resize(*given, method=method))


def _unless_equal(picture: Tensor, sides: Tensor, resize: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    def resized() -> Tensor:
        return tf.cast(tf.clip_by_value(tf.round(resize(picture, sides)), 0, 255), tf.uint8)

    return tf.cond(tf.reduce_all(tf.equal(tf.shape(picture)[:2], sides)), lambda: picture, resized)


def _enlarge(picture: Tensor, sides: Tensor) -> Tensor:
    """Lanczos over eight neighbours, as OpenCV has it and the build uses it; that of tf.image is over six."""
    rows = _lanczos(tf.cast(picture, tf.float32), sides[0])
    return tf.transpose(_lanczos(tf.transpose(rows, [1, 0, 2]), sides[1]), [1, 0, 2])


def _lanczos(pixels: Tensor, side: Tensor) -> Tensor:
    """The pixels with `side` rows."""
    current = tf.shape(pixels)[0]
    places = (tf.range(side, dtype=tf.float32) + 0.5) * tf.cast(current / side, tf.float32) - 0.5
    taps = tf.cast(tf.floor(places), tf.int32)[:, tf.newaxis] + tf.range(1 - LANCZOS, 1 + LANCZOS)
    distances = (tf.cast(taps, tf.float32) - places[:, tf.newaxis]) * math.pi
    # sinc(d) * sinc(d / 4), without its constant factor; at a tap itself it is the limit.
    weights = tf.where(
        tf.abs(distances) < 1e-4, 1.0 / LANCZOS, tf.sin(distances) * tf.sin(distances / LANCZOS) / distances**2
    )
    weights /= tf.reduce_sum(weights, axis=1, keepdims=True)
    return tf.einsum("rt,rtcx->rcx", weights, tf.gather(pixels, tf.clip_by_value(taps, 0, current - 1)))
