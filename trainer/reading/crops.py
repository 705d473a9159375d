"""Which part of a training picture is seen, and from which side: windows, mirrors, shifts and holes.

Windows of a JPEG are decoded without the rest of it. All pictures are uint8 [height, width, 3].
"""

import math
from typing import Any

import tensorflow as tf

from trainer.reading.images import decode, fit, resample
from trainer.reading.seeds import Use, fold, uniform, uniforms
from trainer.reading.settings import ResizedCropConfig
from trainer.reading.source import Geometry

Tensor = Any
TRIES = 10  # windows drawn for a picture; the first that fits into it is used
GREY = 128
BLOCK = 16  # columns that a JPEG decoder decodes together, at most, in what the build writes


def draw_windows(seeds: Tensor, geometry: Geometry) -> dict[str, Tensor]:
    """Windows of the model's size, anywhere in the box, for seeds [..., 2], as `cut_window` takes them.

    `window` [..., (top, left, height, width)] is decoded: whole blocks of columns, because a decoder that is asked for
    less moves every row when it has decoded it. `begin` [..., (row, byte)] is where in there the window begins.
    """
    (height, width), places = geometry.size, [side - wanted + 1 for side, wanted in _sides(geometry)]
    corners = tf.cast(uniforms(seeds, Use.CROP, 2) * tf.constant(places, tf.float32), tf.int32)
    top, left = tf.unstack(corners, axis=-1)
    first = left // BLOCK * BLOCK
    end = tf.minimum(-(-(left + width) // BLOCK) * BLOCK, geometry.box[1])
    return {
        "window": tf.stack([top, first, tf.fill(tf.shape(top), height), end - first], axis=-1),
        "begin": tf.stack([tf.zeros_like(top), 3 * (left - first)], axis=-1),
    }


def _sides(geometry: Geometry) -> list[tuple[int, int]]:
    return list(zip(geometry.box, geometry.size, strict=True))


def cut_window(data: Tensor, drawn: dict[str, Tensor], geometry: Geometry) -> Tensor:
    """The window that was drawn out of the fitted picture."""
    (height, width), window, begin = geometry.size, drawn["window"], drawn["begin"]

    def from_jpeg() -> Tensor:
        # Decoding only the window skips work for the rest; that its decoder is the fast one is a level or two.
        rows = tf.reshape(tf.io.decode_and_crop_jpeg(data, window, channels=3), [height, -1])
        return tf.reshape(tf.slice(rows, begin, [height, 3 * width]), [height, width, 3])

    def from_any() -> Tensor:
        corner = tf.stack([window[0], window[1] + begin[1] // 3])
        return _cut(fit(decode(data), geometry.mode, box=geometry.box), corner, geometry.size)

    # To look at each picture first costs as much as a tenth of its decoding.
    picture = from_jpeg() if geometry.only_jpegs else tf.cond(_is_jpeg_of(data, geometry.box), from_jpeg, from_any)
    return tf.ensure_shape(picture, [height, width, 3])


def _is_jpeg_of(data: Tensor, box: tuple[int, int]) -> Tensor:
    return tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.reduce_all(tf.equal(tf.io.extract_jpeg_shape(data)[:2], box)),
        lambda: tf.constant(False),
    )


def _cut(picture: Tensor, corner: Tensor, sides: Any) -> Tensor:
    return tf.slice(picture, tf.concat([corner, [0]], axis=0), tf.concat([sides, [3]], axis=0))


def random_resized_window(data: Tensor, size: tuple[int, int], config: ResizedCropConfig, *, seed: Tensor) -> Tensor:
    """A window of random area, ratio and place of a picture of any size, brought to `size`."""

    def from_jpeg() -> Tensor:
        window = draw_window(tf.io.extract_jpeg_shape(data)[:2], config, seed=seed)
        return tf.io.decode_and_crop_jpeg(data, window, channels=3)

    def from_others() -> Tensor:
        picture = decode(data)
        window = draw_window(tf.shape(picture)[:2], config, seed=seed)
        return _cut(picture, window[:2], window[2:])

    window = tf.cond(tf.io.is_jpeg(data), from_jpeg, from_others)
    # Lanczos, with which whole pictures are enlarged, would cost more than the decoding.
    shrunk = resample(window, tf.minimum(size, tf.shape(window)[:2]), tf.image.ResizeMethod.AREA)
    return tf.ensure_shape(resample(shrunk, tf.constant(size), tf.image.ResizeMethod.BILINEAR), [*size, 3])


def draw_window(sides: Tensor, config: ResizedCropConfig, *, seed: Tensor) -> Tensor:
    """An int32 window [top, left, height, width] of a picture with these sides.

    The first of ten drawn windows that fits; where none does, the largest in the middle whose ratio is allowed.
    """
    drawn = uniform(seed, Use.CROP, (4, TRIES))
    whole = tf.cast(sides, tf.float32)
    area = _between(config.area, drawn[0]) * whole[0] * whole[1]
    ratio = tf.exp(_between((math.log(config.ratio[0]), math.log(config.ratio[1])), drawn[1]))
    windows = tf.round(tf.stack([tf.sqrt(area / ratio), tf.sqrt(area * ratio)], axis=1))
    fits = tf.reduce_all((windows >= 1) & (windows <= whole), axis=1)
    chosen = tf.argmax(tf.cast(fits, tf.int32))
    height, width = tf.unstack(tf.where(tf.reduce_any(fits), windows[chosen], _largest(whole, config.ratio)))
    places = tf.where(tf.reduce_any(fits), drawn[2:, chosen], 0.5)
    corner = tf.floor(places * (whole - [height, width] + 1))
    return tf.cast(tf.concat([corner, [height, width]], axis=0), tf.int32)


def _between(bounds: tuple[float, float], drawn: Tensor) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * drawn


def _largest(whole: Tensor, ratio: tuple[float, float]) -> Tensor:
    """The largest sides whose ratio of width to height is allowed."""
    height = tf.minimum(whole[0], tf.round(whole[1] / ratio[0]))
    width = tf.minimum(whole[1], tf.round(whole[0] * ratio[1]))
    return tf.maximum(tf.stack([height, width]), 1)


def random_shift(picture: Tensor, pixels: int, *, seed: Tensor) -> Tensor:
    """Moves the picture by up to `pixels` each way; its own mirrored edge fills the gap."""
    margin = tf.constant([[pixels, pixels], [pixels, pixels], [0, 0]])
    corner = tf.random.stateless_uniform([2], fold(seed, Use.SHIFT), maxval=2 * pixels + 1, dtype=tf.int32)
    shifted = _cut(tf.pad(picture, margin, mode="SYMMETRIC"), corner, picture.shape[:2])
    return tf.ensure_shape(shifted, picture.shape)


def random_flip(picture: Tensor, *, seed: Tensor) -> Tensor:
    """Mirrors half of the pictures left to right."""
    return tf.image.stateless_random_flip_left_right(picture, fold(seed, Use.FLIP))


def random_vertical_flip(picture: Tensor, *, seed: Tensor) -> Tensor:
    """Mirrors half of the pictures top to bottom."""
    return tf.image.stateless_random_flip_up_down(picture, fold(seed, Use.FLIP_VERTICAL))


def random_cutout(picture: Tensor, side: float, *, seed: Tensor) -> Tensor:
    """Fills a box of `side` times the picture's sides, its middle anywhere in the picture, with grey."""
    whole = tf.cast(picture.shape[:2], tf.float32)
    middle = uniform(seed, Use.CUTOUT, (2,)) * whole
    first, last = tf.round(middle - side / 2 * whole), tf.round(middle + side / 2 * whole)
    return tf.where(inside(tf.concat([first, last], axis=0), picture.shape[:2])[..., tf.newaxis], _grey(), picture)


def _grey() -> Tensor:
    return tf.constant(GREY, tf.uint8)


def inside(box: Tensor, size: tuple[int, int]) -> Tensor:
    """Which pixels of a picture lie in boxes [..., (top, left, bottom, right)]: [..., height, width] booleans."""
    top, left, bottom, right = (box[..., side, tf.newaxis] for side in range(4))
    rows, columns = (tf.range(side, dtype=box.dtype) for side in size)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return in_rows[..., :, tf.newaxis] & in_columns[..., tf.newaxis, :]
