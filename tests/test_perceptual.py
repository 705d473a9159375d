"""The perceptual hash on real photographs: copies are close, others are far, flat pictures have none."""

import io

import numpy as np
import pytest
from conftest import make_config
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_image

from pipelines.config import DedupeConfig
from pipelines.pictures.images import decode_small
from pipelines.pictures.perceptual import FLAT, SIDE, distance, distances, low_frequencies, perceptual_hash, to_words

DISTANCE = DedupeConfig().distance
TILE = 160


def photos() -> list[Image.Image]:
    """Two photographs that scikit-learn carries, whole and cut into tiles; without those that are hardly but blur."""
    whole = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    corners = [(left, top) for left in range(0, 640 - TILE + 1, TILE) for top in (0, TILE)]
    tiles = [image.crop((left, top, left + TILE, top + TILE)) for image in whole for left, top in corners]
    return whole + [tile for tile in tiles if np.asarray(tile.convert("L")).std() > 30]


PHOTOS = photos()


def reencode(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def resize(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)


def look_of(data: bytes) -> bytes:
    """The look of a file, as a build sees it."""
    pixels = decode_small(data, "", make_config("raw", "out").image, size=(SIDE, SIDE))
    return perceptual_hash(pixels)


COPIES = {
    "png": lambda image: reencode(image, "png"),
    "webp": lambda image: reencode(image, "webp", quality=80),
    "quality 30": lambda image: reencode(image, "jpeg", quality=30),
    "half": lambda image: reencode(resize(image, 0.5), "jpeg", quality=90),
    "double": lambda image: reencode(resize(image, 2), "jpeg", quality=90),
    "darker": lambda image: reencode(ImageEnhance.Brightness(image).enhance(0.9), "jpeg", quality=90),
    "progressive": lambda image: reencode(image, "jpeg", quality=75, progressive=True),
}


@pytest.mark.parametrize("change", COPIES)
def test_copies_of_photographs_are_within_the_default_distance(change):
    for image in PHOTOS:
        original, copy = look_of(reencode(image, "jpeg", quality=95)), look_of(COPIES[change](image))
        assert distance(original, copy) <= DISTANCE


def test_brightened_photographs_are_within_the_default_distance():
    for image in PHOTOS:
        bright = ImageEnhance.Brightness(image).enhance(1.1)
        assert distance(look_of(reencode(image, "png")), look_of(reencode(bright, "png"))) <= DISTANCE


def test_other_photographs_are_far_away():
    looks = [look_of(reencode(image, "png")) for image in PHOTOS]
    assert len(looks) >= 12
    nearest = min(distance(one, other) for one in looks for other in looks if one is not other)
    assert nearest > 3 * DISTANCE


def test_mirrored_and_turned_photographs_are_others():
    original = look_of(reencode(PHOTOS[0], "png"))
    for change in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180):
        assert distance(original, look_of(reencode(PHOTOS[0].transpose(change), "png"))) > 3 * DISTANCE


@pytest.mark.parametrize("colour", ["black", "white", "#808182"])
def test_flat_pictures_have_no_look(colour):
    assert perceptual_hash(np.asarray(Image.new("RGB", (300, 200), colour))) == b""


def test_a_flat_picture_with_noise_has_no_look():
    noise = np.random.default_rng(0).normal(128, 4, (200, 200, 1)).clip(0, 255).astype(np.uint8)
    assert perceptual_hash(np.repeat(noise, 3, axis=2)) == b""


def test_a_faint_picture_has_a_look():
    ramp = np.repeat(np.linspace(120, 130, 64, dtype=np.uint8)[:, None], 64, axis=1)
    assert len(perceptual_hash(np.repeat(ramp[:, :, None], 3, axis=2))) == 32
    assert len(FLAT) != 32


def test_half_of_the_bits_are_set_and_the_first_is_not():
    for image in PHOTOS[:2]:
        bits = np.unpackbits(np.frombuffer(perceptual_hash(np.asarray(image)), np.uint8))
        assert bits.sum() == 127  # those above the median of 255
        assert bits[0] == 0


def test_the_hash_of_known_pixels_is_fixed():
    # Stored hashes are compared with new ones, so the function may never change.
    x, y = np.meshgrid(np.arange(80), np.arange(60))
    pixels = np.stack([(x * y) % 251, (3 * x + y) % 256, (x * x + 7 * y) % 241], axis=-1).astype(np.uint8)
    assert perceptual_hash(pixels).hex() == "15002a574aab157a5fd53f012a0b383f7cfc307070f171c373c7638e671c6739"


def test_low_frequencies_are_those_of_the_cosine_transform():
    size = np.arange(SIDE) + 0.5
    wave = np.rint(128 + 100 * np.cos(np.pi / SIDE * 3 * size))  # three half waves from left to right
    grid = low_frequencies(np.repeat(np.tile(wave, (SIDE, 1)).astype(np.uint8)[:, :, None], 3, axis=2)).reshape(16, 16)
    grid = np.abs(grid)
    assert np.unravel_index(np.argsort(grid, axis=None)[-2:], grid.shape)[1].tolist() == [3, 0]  # and the mean
    assert grid[0, 3] > 50 * np.sort(grid, axis=None)[-3]


def test_distances_are_counted_bits():
    looks = [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), bytes(31) + b"\x81"]
    words = to_words(looks)
    assert distances(words[:, 0], words).tolist() == [0, 256, 1, 2]
    assert [distance(looks[2], other) for other in looks] == [1, 255, 0, 3]


def test_tiny_and_grey_pictures_have_looks():
    tiny = np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert len(perceptual_hash(tiny)) == 32
    thin = np.random.default_rng(1).integers(0, 256, (300, 3, 3), dtype=np.uint8)
    assert len(perceptual_hash(thin)) == 32
