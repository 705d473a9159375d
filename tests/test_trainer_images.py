"""Pictures come out as the build makes them, the same in training and serving; eagerly and inside tf.data."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from trainer_data import MEAN, STD, encode, write_transform

from trainer.reading.augment import prepare_training
from trainer.reading.crops import draw_windows
from trainer.reading.images import decode, fit, prepare
from trainer.reading.seeds import record_seed
from trainer.reading.settings import AugmentConfig
from trainer.reading.source import Geometry
from trainer.reading.transform import Transform

NOISE = np.random.default_rng(3).integers(0, 256, (20, 30, 3), dtype=np.uint8)
SQUARE = Geometry(mode="exact", box=(8, 8), size=(8, 8))


def both_ways(function: Callable[[Any], Any], data: bytes) -> Any:
    """The result, after making sure that it is the same eagerly and inside tf.data."""
    eager = function(tf.constant(data)).numpy()
    [mapped] = tf.data.Dataset.from_tensors(data).map(function).as_numpy_iterator()
    np.testing.assert_array_equal(eager, mapped)
    return eager


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "JPEG", "WEBP"])
def test_decodes_formats(kind: str) -> None:
    pixels = np.full((5, 7, 3), 200, np.uint8)
    decoded = both_ways(decode, encode(pixels, kind))
    assert decoded.shape == (5, 7, 3)
    assert decoded.dtype == np.uint8
    assert np.abs(decoded.astype(int) - 200).max() <= 3


def test_decodes_grey_to_rgb() -> None:
    stream = io.BytesIO()
    Image.new("L", (4, 3), 77).save(stream, "PNG")
    assert both_ways(decode, stream.getvalue()).tolist() == [[[77] * 3] * 4] * 3


def test_refuses_other_bytes() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(b"<html>")


@pytest.mark.parametrize("mode", ["exact", "center_crop", "border"])
def test_stored_size_passes_untouched(mode: str) -> None:
    geometry = Geometry(mode=mode, box=(20, 30), size=(20, 30))
    np.testing.assert_array_equal(both_ways(lambda data: prepare(data, geometry), encode(NOISE)), NOISE)


def smooth(height: int, width: int) -> Any:
    """A gradient, on which resampling filters agree."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 200 / height, columns * 200 / width, (rows + columns) * 100 / (height + width)], -1).astype(
        np.uint8
    )


@pytest.mark.parametrize("mode", ["exact", "center_crop", "border"])
@pytest.mark.parametrize("size", [(40, 61), (61, 40), (9, 33), (10, 11)])
def test_fits_as_the_build_does(mode: str, size: tuple[int, int]) -> None:
    resize = pytest.importorskip("pipelines.pictures.resize")
    config = pytest.importorskip("pipelines.config").ResizeConfig(mode=mode, height=16, width=20)
    pixels = smooth(*size)
    built = resize.resample(pixels, resize.plan_resize(*size, config))
    fitted = fit(tf.constant(pixels), mode, box=(16, 20)).numpy()
    assert fitted.shape == built.shape
    assert np.abs(fitted.astype(int) - built.astype(int)).max() <= 12
    assert np.abs(fitted.astype(int) - built.astype(int)).mean() < 1


def test_crop_takes_the_middle_when_not_training() -> None:
    geometry = Geometry(mode="exact", box=(20, 30), size=(10, 16))
    cropped = both_ways(lambda data: prepare(data, geometry), encode(NOISE))
    np.testing.assert_array_equal(cropped, NOISE[5:15, 7:23])


def augmented(data: bytes, config: AugmentConfig, *, epoch: int = 0, ordinal: int = 0) -> Any:
    def function(data: Any) -> Any:
        return prepare_training(data, SQUARE, config, seed=record_seed(5, epoch=epoch, ordinal=ordinal))

    return both_ways(function, data)


def many(data: bytes, config: AugmentConfig, *, geometry: Geometry = SQUARE) -> list[Any]:
    """Twenty records with the same picture; the first of them also eagerly."""

    def function(ordinal: Any) -> Any:
        seed = record_seed(5, epoch=0, ordinal=ordinal)
        return prepare_training(tf.constant(data), geometry, config, seed=seed)

    pictures = list(tf.data.Dataset.range(20).map(function).as_numpy_iterator())
    np.testing.assert_array_equal(pictures[0], function(0))
    return pictures


def test_nothing_random_without_augmentation() -> None:
    np.testing.assert_array_equal(augmented(encode(NOISE[:8, :8]), AugmentConfig()), NOISE[:8, :8])


def test_flip_mirrors_about_half() -> None:
    pixels = NOISE[:8, :8]
    flipped = [np.array_equal(one, pixels[:, ::-1]) for one in many(encode(pixels), AugmentConfig(flip=True))]
    assert 4 <= sum(flipped) <= 16


def test_shift_moves_within_bounds() -> None:
    pixels = NOISE[:8, :8]
    padded = np.pad(pixels, [(2, 2), (2, 2), (0, 0)], mode="symmetric")
    possible = {padded[y : y + 8, x : x + 8].tobytes() for y in range(5) for x in range(5)}
    seen = {one.tobytes() for one in many(encode(pixels), AugmentConfig(shift=2))}
    assert seen <= possible
    assert len(seen) > 5


def test_crop_finds_windows_of_the_picture() -> None:
    geometry = Geometry(mode="exact", box=(20, 30), size=(18, 28))
    possible = {NOISE[y : y + 18, x : x + 28].tobytes() for y in range(3) for x in range(3)}
    seen = {one.tobytes() for one in many(encode(NOISE), AugmentConfig(crop=True), geometry=geometry)}
    assert seen <= possible
    assert len(seen) > 3


def test_jpeg_crop_is_the_same_window() -> None:
    data = encode(smooth(40, 60), "JPEG")
    geometry, config = Geometry(mode="exact", box=(40, 60), size=(32, 32)), AugmentConfig(crop=True)
    whole = decode(data).numpy().astype(int)
    for window in many(data, config, geometry=geometry)[:5]:
        differences = [
            np.abs(whole[y : y + 32, x : x + 32] - window.astype(int)).max() for y in range(9) for x in range(29)
        ]
        assert min(differences) <= 3


@pytest.mark.parametrize("only_jpegs", [True, False])
def test_windows_are_cut_where_they_were_drawn(only_jpegs: bool) -> None:
    geometry = Geometry(mode="exact", box=(40, 60), size=(32, 33), only_jpegs=only_jpegs)
    jpeg = encode(smooth(40, 60), "JPEG")
    whole = tf.io.decode_jpeg(jpeg, channels=3).numpy().astype(int)
    for ordinal, picture in enumerate(many(jpeg, AugmentConfig(crop=True), geometry=geometry)):
        top, left = corner(ordinal, geometry)
        assert np.abs(whole[top : top + 32, left : left + 33] - picture).max() <= 2
    if not only_jpegs:
        for ordinal, picture in enumerate(many(encode(whole), AugmentConfig(crop=True), geometry=geometry)):
            top, left = corner(ordinal, geometry)
            np.testing.assert_array_equal(whole[top : top + 32, left : left + 33], picture)


def corner(ordinal: int, geometry: Geometry) -> tuple[int, int]:
    drawn = draw_windows(record_seed(5, epoch=0, ordinal=ordinal), geometry)
    return int(drawn["window"][0]), int(drawn["window"][1] + drawn["begin"][1] // 3)


def test_windows_drawn_for_many_records_are_those_drawn_for_each() -> None:
    geometry = Geometry(mode="exact", box=(40, 60), size=(32, 33))
    ordinals = tf.range(200, dtype=tf.int64)
    zeros = tf.zeros_like(ordinals)
    drawn = draw_windows(record_seed(5, epoch=zeros, ordinal=ordinals, occurrence=zeros), geometry)
    for number in (0, 7, 199):
        one = draw_windows(record_seed(5, epoch=0, ordinal=number), geometry)
        assert {name: values[number].numpy().tolist() for name, values in drawn.items()} == {
            name: value.numpy().tolist() for name, value in one.items()
        }
    top, first, height, width = drawn["window"].numpy().T
    row, skipped = drawn["begin"].numpy().T
    left = first + skipped // 3
    assert (set(top), set(left)) == (set(range(9)), set(range(28)))
    assert set(row) == {0}
    assert set(height) == {32}
    assert (first % 16 == 0).all()
    assert ((width % 16 == 0) | (first + width == 60)).all()
    assert (left + 33 <= first + width).all()


def test_augmentation_depends_on_epoch_and_record() -> None:
    data, config = encode(NOISE[:8, :8]), AugmentConfig(shift=4)
    base = augmented(data, config)
    np.testing.assert_array_equal(base, augmented(data, config))
    assert any(not np.array_equal(base, augmented(data, config, epoch=n)) for n in (1, 2, 3))
    assert any(not np.array_equal(base, augmented(data, config, ordinal=n)) for n in (1, 2, 3))


def test_transform_normalises_pixels(tmp_path: Path) -> None:
    write_transform(tmp_path)
    pictures = NOISE[np.newaxis]
    expected = (pictures.astype(np.float32) / 255 - MEAN) / STD
    np.testing.assert_allclose(Transform(tmp_path)(pictures), expected, rtol=1e-5, atol=1e-5)
