"""Encoded pictures to uint8 tensors of the model's size: the same functions in training, evaluation and serving."""

from typing import Any

import tensorflow as tf

from trainer.source import Geometry

Tensor = Any


def decode(data: Tensor) -> Tensor:
    """The picture in JPEG, PNG, GIF (first frame), BMP or WebP bytes as uint8 RGB [height, width, 3]."""
    picture = tf.io.decode_image(data, channels=3, expand_animations=False)
    return tf.ensure_shape(picture, [None, None, 3])


def prepare(data: Tensor, geometry: Geometry) -> Tensor:
    """Encoded bytes as the model's uint8 input, without anything random."""
    return middle(fit(decode(data), geometry.mode, box=geometry.box), geometry.size)


def fit(picture: Tensor, mode: str, *, box: tuple[int, int]) -> Tensor:
    """The picture brought to `box` (height, width) as the build does it; one that has this size already passes untouched."""
    fitted = tf.cond(
        tf.reduce_all(tf.equal(tf.shape(picture)[:2], box)), lambda: picture, lambda: _FITTERS[mode](picture, box)
    )
    return tf.ensure_shape(fitted, [*box, 3])


def middle(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """The central window of `size`."""
    top, left = ((side - wanted) // 2 for side, wanted in zip(picture.shape[:2], size, strict=True))
    return picture[top : top + size[0], left : left + size[1]]


def _exact(picture: Tensor, box: tuple[int, int]) -> Tensor:
    return _resize(picture, tf.constant(box))


def _center_crop(picture: Tensor, box: tuple[int, int]) -> Tensor:
    covering = _resize(picture, _scaled_sides(picture, box, tf.reduce_max))
    top, left = tf.unstack((tf.shape(covering)[:2] - box) // 2)
    return covering[top : top + box[0], left : left + box[1]]


def _border(picture: Tensor, box: tuple[int, int]) -> Tensor:
    inside = _resize(picture, _scaled_sides(picture, box, tf.reduce_min))
    before = (box - tf.shape(inside)[:2]) // 2
    after = box - tf.shape(inside)[:2] - before
    return tf.pad(inside, tf.concat([tf.stack([before, after], axis=1), [[0, 0]]], axis=0))


_FITTERS = {"exact": _exact, "center_crop": _center_crop, "border": _border}


def _scaled_sides(picture: Tensor, box: tuple[int, int], choose: Any) -> Tensor:
    """The sides after scaling by one factor, the larger or the smaller of the two that `box` asks for."""
    sides = tf.cast(tf.shape(picture)[:2], tf.float64)
    scale = choose(tf.cast(box, tf.float64) / sides)
    return tf.maximum(tf.cast(tf.round(sides * scale), tf.int32), 1)


def _resize(picture: Tensor, sides: Tensor) -> Tensor:
    """Shrinks by averaging areas, as the build does; enlarges bilinearly, where areas would give blocks."""
    batch = picture[tf.newaxis]
    shrinks = tf.reduce_all(sides <= tf.shape(picture)[:2])
    resized = tf.cond(
        shrinks,
        lambda: tf.image.resize(batch, sides, method=tf.image.ResizeMethod.AREA),
        lambda: tf.image.resize(batch, sides, method=tf.image.ResizeMethod.BILINEAR),
    )
    return tf.cast(tf.round(tf.clip_by_value(resized[0], 0, 255)), tf.uint8)
