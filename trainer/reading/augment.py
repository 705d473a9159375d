"""Random changes to training pictures: stateless, so that (seed, epoch, record) alone decides every pixel."""

from typing import Any

import tensorflow as tf

from trainer.reading.images import decode, fit
from trainer.reading.settings import AugmentConfig
from trainer.reading.source import Geometry

Tensor = Any
_CROP, _SHIFT, _FLIP = range(3)


def record_seed(seed: int, *, epoch: Tensor, ordinal: Tensor, occurrence: Tensor = 0) -> Tensor:
    """The int64 [2] seed of one record in one epoch, another one each time that the epoch draws it."""
    return tf.stack(
        [tf.cast(epoch, tf.int64) * 2**31 + seed, tf.cast(occurrence, tf.int64) * 2**40 + tf.cast(ordinal, tf.int64)]
    )


def prepare_training(data: Tensor, geometry: Geometry, config: AugmentConfig, *, seed: Tensor) -> Tensor:
    """Encoded bytes as the model's uint8 input, changed at random as `config` says."""
    picture = _random_window(data, geometry, _fold(seed, _CROP))
    if config.shift:
        picture = _shift(picture, config.shift, seed=_fold(seed, _SHIFT))
    if config.flip:
        picture = tf.image.stateless_random_flip_left_right(picture, _fold(seed, _FLIP))
    return picture


def _fold(seed: Tensor, use: int) -> Tensor:
    return tf.random.experimental.stateless_fold_in(seed, use)


def _random_window(data: Tensor, geometry: Geometry, seed: Tensor) -> Tensor:
    """A window of the model's size anywhere in the picture; just the fitted picture when there is no margin."""
    if geometry.box == geometry.size:
        return fit(decode(data), geometry.mode, box=geometry.box)
    places = [float(side - wanted + 1) for side, wanted in zip(geometry.box, geometry.size, strict=True)]
    corner = tf.cast(tf.random.stateless_uniform([2], seed) * places, tf.int32)
    window = tf.cond(
        _is_jpeg_of(data, geometry.box),
        # Decoding only the window skips work for the rest.
        lambda: tf.io.decode_and_crop_jpeg(data, tf.concat([corner, geometry.size], axis=0), channels=3),
        lambda: tf.slice(
            fit(decode(data), geometry.mode, box=geometry.box), tf.concat([corner, [0]], axis=0), [*geometry.size, 3]
        ),
    )
    return tf.ensure_shape(window, [*geometry.size, 3])


def _is_jpeg_of(data: Tensor, box: tuple[int, int]) -> Tensor:
    return tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.reduce_all(tf.equal(tf.io.extract_jpeg_shape(data)[:2], box)),
        lambda: tf.constant(False),
    )


def _shift(picture: Tensor, pixels: int, *, seed: Tensor) -> Tensor:
    """Moves the picture by up to `pixels` each way; its own mirrored edge fills the gap."""
    margin = tf.constant([[pixels, pixels], [pixels, pixels], [0, 0]])
    corner = tf.random.stateless_uniform([2], seed, maxval=2 * pixels + 1, dtype=tf.int32)
    shifted = tf.slice(tf.pad(picture, margin, mode="SYMMETRIC"), tf.concat([corner, [0]], axis=0), picture.shape)
    return tf.ensure_shape(shifted, picture.shape)
