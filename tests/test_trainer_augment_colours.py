"""Colours change as Pillow changes them where it has the same operation, and as stated where it has not."""

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from trainer.reading import colours
from trainer.reading.seeds import record_seed
from trainer.reading.settings import ColourConfig

GENERATOR = np.random.default_rng(9)
PICTURES = {
    "noise": GENERATOR.integers(0, 256, (14, 18, 3), dtype=np.uint8),
    "dark": GENERATOR.integers(20, 70, (40, 50, 3), dtype=np.uint8),
    "one colour": np.full((8, 9, 3), (10, 128, 250), np.uint8),
    "two values": np.array([[[0, 5, 255]] * 7, [[0, 9, 255]] * 7] * 3, np.uint8),
}


def pillow(function: Callable[[Image.Image], Image.Image], pixels: Any) -> Any:
    return np.asarray(function(Image.fromarray(pixels, "RGB"))).astype(int)


def ours(function: Callable[[Any], Any], pixels: Any) -> Any:
    result = tf.function(function)(tf.constant(pixels))
    assert result.dtype == tf.uint8
    assert result.shape == pixels.shape
    return result.numpy().astype(int)


SAME: dict[str, tuple[Callable[[Any], Any], Callable[[Image.Image], Image.Image]]] = {
    "invert": (colours.invert, ImageOps.invert),
    "posterize 8": (lambda x: colours.posterize(x, tf.constant(8.0)), lambda x: ImageOps.posterize(x, 8)),
    "posterize 3": (lambda x: colours.posterize(x, tf.constant(3.0)), lambda x: ImageOps.posterize(x, 3)),
    "solarize 256": (lambda x: colours.solarize(x, 256), lambda x: ImageOps.solarize(x, 256)),
    "solarize 100": (lambda x: colours.solarize(x, 100), lambda x: ImageOps.solarize(x, 100)),
    "solarize 0": (lambda x: colours.solarize(x, 0), lambda x: ImageOps.solarize(x, 0)),
    "equalize": (colours.equalize, ImageOps.equalize),
    "autocontrast": (colours.autocontrast, ImageOps.autocontrast),
}


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("operation", SAME)
def test_is_pillows(operation: str, picture: str) -> None:
    mine, theirs = SAME[operation]
    np.testing.assert_array_equal(ours(mine, PICTURES[picture]), pillow(theirs, PICTURES[picture]))


@pytest.mark.parametrize("picture", ["noise", "dark", "one colour"])
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.9])
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (colours.brightness, ImageEnhance.Brightness),
        (colours.contrast, ImageEnhance.Contrast),
        (colours.saturation, ImageEnhance.Color),
        (colours.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_is_pillows_but_for_rounding(mine: Any, theirs: Any, factor: float, picture: str) -> None:
    pixels = PICTURES[picture]
    found = ours(lambda x: mine(x, tf.constant(factor)), pixels)
    expected = pillow(lambda x: theirs(x).enhance(factor), pixels)
    assert np.abs(found - expected).max() <= (3 if factor > 1 else 2)
    if factor == 1:
        np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize("turns", [-0.4, 0.1, 1 / 3])
def test_hue_turns_colours_and_keeps_greys_and_brightness(turns: float) -> None:
    def turned(pixels: Any) -> Any:
        return ours(lambda x: colours.recolour(x, colours.hue_matrix(tf.constant(turns)), tf.constant(0.0)), pixels)

    grey = np.repeat(np.arange(0, 250, 10, dtype=np.uint8)[:, np.newaxis, np.newaxis], 3, axis=2)
    np.testing.assert_array_equal(turned(grey), grey)
    muted = np.array([[[140, 120, 110], [100, 130, 120], [110, 115, 140]]], np.uint8)  # nothing is cut off at 0 or 255
    found = turned(muted)
    assert found @ colours.LUMA == pytest.approx(muted @ colours.LUMA, abs=1)
    for before, after in zip(muted[0], found[0], strict=True):
        one, other = (colorsys.rgb_to_hsv(*(pixel / 255))[0] for pixel in (before, after))
        moved = abs(other - one)
        assert min(moved, 1 - moved) == pytest.approx(abs(turns), abs=0.06)


def test_colours_change_within_their_bounds() -> None:
    grey = tf.constant(np.full((4, 4, 3), 100, np.uint8))

    @tf.function
    def brightened(ordinal: Any) -> Any:
        seed = record_seed(1, epoch=0, ordinal=ordinal)
        return colours.random_colours(grey, ColourConfig(brightness=0.4), seed=seed)

    values = np.array([brightened(tf.constant(n, tf.int64))[0, 0, 0].numpy() for n in range(200)])
    assert 60 <= values.min() < 65
    assert 135 < values.max() <= 140


@pytest.mark.parametrize("part", ["brightness", "contrast", "saturation", "hue"])
def test_one_matrix_does_what_the_parts_do(part: str) -> None:
    pixels = np.random.default_rng(2).integers(90, 160, (6, 7, 3), dtype=np.uint8)
    seed = record_seed(1, epoch=0, ordinal=3)
    config = ColourConfig(**{part: 0.3})
    sign = float((colours.uniform(seed, colours.Use.COLOUR, (4,)) * 2 - 1)[list(ColourConfig.model_fields).index(part)])
    alone: dict[str, Callable[[Any], Any]] = {
        "brightness": lambda x: colours.brightness(x, 1 + 0.3 * sign),
        "contrast": lambda x: colours.contrast(x, 1 + 0.3 * sign),
        "saturation": lambda x: colours.saturation(x, 1 + 0.3 * sign),
        "hue": lambda x: colours.recolour(x, colours.hue_matrix(0.3 * sign), tf.constant(0.0)),
    }
    found = ours(lambda x: colours.random_colours(x, config, seed=seed), pixels)
    assert np.abs(found - ours(alone[part], pixels)).max() <= 1
    assert np.abs(found - pixels.astype(int)).max() > 2


def test_parts_follow_each_other() -> None:
    pixels = np.random.default_rng(2).integers(100, 150, (6, 7, 3), dtype=np.uint8)
    seed = record_seed(1, epoch=0, ordinal=4)
    config = ColourConfig(brightness=0.2, contrast=0.3, saturation=0.4, hue=0.1)
    signs = (colours.uniform(seed, colours.Use.COLOUR, (4,)) * 2 - 1).numpy()

    def one_by_one(x: Any) -> Any:
        x = colours.contrast(colours.brightness(x, 1 + 0.2 * signs[0]), 1 + 0.3 * signs[1])
        return colours.recolour(
            colours.saturation(x, 1 + 0.4 * signs[2]), colours.hue_matrix(0.1 * signs[3]), tf.constant(0.0)
        )

    found = ours(lambda x: colours.random_colours(x, config, seed=seed), pixels)
    assert np.abs(found - ours(one_by_one, pixels)).max() <= 3
