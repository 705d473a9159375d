"""Crops, mirrors, holes and what the settings switch on; each decided by the record's seed alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from trainer_data import encode, make_config

from shards.errors import UsageError
from trainer.reading.augment import augment, prepare_training
from trainer.reading.crops import draw_window, inside, random_cutout, random_resized_window, random_vertical_flip
from trainer.reading.images import decode
from trainer.reading.seeds import record_seed
from trainer.reading.settings import AugmentConfig, ColourConfig, PolicyConfig, ResizedCropConfig
from trainer.reading.source import Geometry, find_geometry

NOISE = np.random.default_rng(3).integers(0, 256, (12, 16, 3), dtype=np.uint8)


def for_records(count: int, function: Callable[[Any], Any], *, epoch: int = 0) -> Any:
    """What a function of the record's seed gives for the first records, from one graph."""
    records = tf.data.Dataset.range(count)
    return np.stack(list(records.map(lambda n: function(record_seed(5, epoch=epoch, ordinal=n))).as_numpy_iterator()))


@pytest.mark.parametrize("sides", [(400, 600), (600, 400), (300, 300)])
def test_windows_have_the_area_and_ratio_asked_for(sides: tuple[int, int]) -> None:
    config = ResizedCropConfig(area=(0.2, 0.6), ratio=(0.5, 2.0))
    windows = for_records(500, lambda seed: draw_window(tf.constant(sides), config, seed=seed))
    top, left, height, width = windows.T
    assert (windows[:, :2] >= 0).all()
    assert (top + height <= sides[0]).all()
    assert (left + width <= sides[1]).all()
    area, ratio = height * width / (sides[0] * sides[1]), width / height
    assert 0.19 < area.min() < 0.25
    assert 0.55 < area.max() < 0.61
    assert area.mean() == pytest.approx(0.4, abs=0.05)
    assert 0.49 < ratio.min() < 0.65
    assert 1.5 < ratio.max() < 2.02
    assert np.log(ratio).mean() == pytest.approx(0, abs=0.15)
    middles = (windows[:, :2] + windows[:, 2:] / 2).mean(axis=0)
    assert middles == pytest.approx([sides[0] / 2, sides[1] / 2], rel=0.1)


@pytest.mark.parametrize(
    ("sides", "expected"),
    [((100, 900), [0, 383, 100, 133]), ((900, 100), [383, 0, 133, 100]), ((1, 1), [0, 0, 1, 1])],
)
def test_where_no_window_fits_the_largest_in_the_middle_is_taken(sides: tuple[int, int], expected: list[int]) -> None:
    config = ResizedCropConfig(area=(1.0, 1.0), ratio=(0.75, 1.333))
    windows = for_records(3, lambda seed: draw_window(tf.constant(sides), config, seed=seed))
    assert np.abs(windows - expected).max() <= 1


def gradient(height: int, width: int) -> Any:
    """Red tells the row and green the column, so that a pixel tells where it comes from."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 250 // height, columns * 250 // width, np.full_like(rows, 100)], axis=-1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("sides", [(90, 120), (20, 17)])
def test_a_resized_window_is_that_part_of_the_picture(kind: str, sides: tuple[int, int]) -> None:
    data, config = encode(gradient(*sides), kind), ResizedCropConfig(area=(0.3, 0.9))
    pictures = for_records(8, lambda seed: random_resized_window(tf.constant(data), (24, 30), config, seed=seed))
    windows = for_records(8, lambda seed: draw_window(tf.constant(sides), config, seed=seed))
    assert pictures.shape == (8, 24, 30, 3)
    assert pictures.dtype == np.uint8
    whole = decode(data).numpy().astype(int)
    for picture, (top, left, height, width) in zip(pictures.astype(int), windows, strict=True):
        part = whole[top : top + height, left : left + width]
        assert picture.mean(axis=(0, 1)) == pytest.approx(part.mean(axis=(0, 1)), abs=4)
        assert picture[0, 0] == pytest.approx(part[0, 0], abs=12)
        assert picture[-1, -1] == pytest.approx(part[-1, -1], abs=12)


def test_flip_vertical_mirrors_about_half() -> None:
    flipped = for_records(40, lambda seed: random_vertical_flip(tf.constant(NOISE), seed=seed))
    upside_down = [np.array_equal(picture, NOISE[::-1]) for picture in flipped]
    assert all(np.array_equal(picture, NOISE) != down for picture, down in zip(flipped, upside_down, strict=True))
    assert 8 <= sum(upside_down) <= 32


def test_cutout_makes_a_grey_box() -> None:
    pictures = for_records(40, lambda seed: random_cutout(tf.constant(NOISE), 0.5, seed=seed))
    changed = (pictures != NOISE).any(axis=-1)
    assert (pictures[changed] == 128).all()
    for holes in changed:
        rows, columns = np.flatnonzero(holes.any(axis=1)), np.flatnonzero(holes.any(axis=0))
        # The middle is anywhere in the picture, so a part of the box may lie outside.
        assert 2 <= len(rows) <= 7
        assert 3 <= len(columns) <= 9
        assert holes[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
    assert changed.any(axis=0).all(), "holes come everywhere"


def test_inside_takes_many_boxes() -> None:
    found = inside(tf.constant([[0, 1, 2, 3], [1, 1, 1, 1]]), (3, 4)).numpy().astype(int)
    assert found.tolist() == [[[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]], [[0] * 4] * 3]


CHANGES: dict[str, dict[str, Any]] = {
    "flip": {"flip": True},
    "flip_vertical": {"flip_vertical": True},
    "shift": {"shift": 3},
    "resized_crop": {"resized_crop": ResizedCropConfig()},
    "policy": {"policy": PolicyConfig()},
    "colour": {"colour": ColourConfig(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)},
    "cutout": {"cutout": 0.4},
}
SQUARE = Geometry(mode="exact", box=(12, 16), size=(12, 16))


@pytest.mark.parametrize("change", CHANGES)
def test_seed_epoch_and_record_decide_each_change(change: str) -> None:
    config, data = AugmentConfig(**CHANGES[change]), tf.constant(encode(NOISE))

    @tf.function
    def changed(epoch: Any, ordinal: Any, occurrence: Any) -> Any:
        seed = record_seed(5, epoch=epoch, ordinal=ordinal, occurrence=occurrence)
        return prepare_training(data, SQUARE, config, seed=seed)

    def eight(epoch: int, start: int, occurrence: int) -> Any:
        numbers = [tf.constant(n, tf.int64) for n in range(start, start + 8)]
        return np.stack([changed(tf.constant(epoch), n, tf.constant(occurrence)).numpy() for n in numbers])

    base = eight(0, 0, 0)
    assert base.shape == (8, 12, 16, 3)
    assert base.dtype == np.uint8
    np.testing.assert_array_equal(base, eight(0, 0, 0))
    others = [eight(1, 0, 0), eight(0, 8, 0), eight(0, 0, 1)]
    assert all(not np.array_equal(base, other) for other in others)
    assert (base != NOISE).any()


def test_without_settings_nothing_changes_and_nothing_is_built() -> None:
    picture = tf.constant(NOISE)
    assert augment(picture, AugmentConfig(), seed=record_seed(5, epoch=0, ordinal=0)) is picture


def test_switching_one_change_on_leaves_the_others_as_they_are() -> None:
    def changed(config: AugmentConfig) -> Any:
        return for_records(10, lambda seed: augment(tf.constant(NOISE), config, seed=seed))

    both, flipped = changed(AugmentConfig(flip=True, cutout=0.3)), changed(AugmentConfig(flip=True))
    hole = (both == 128).all(axis=-1)
    np.testing.assert_array_equal(both[~hole], flipped[~hole])
    assert hole.any()


def test_resized_crop_leaves_evaluation_alone() -> None:
    stored = {"image": {"resize": {"mode": "keep_ratio", "size": 20}}}
    config = make_config("", model__image_size=8, augment__resized_crop={})
    assert find_geometry(config, stored) == find_geometry(make_config("", model__image_size=8), stored)
    assert config.augment.resized_crop == ResizedCropConfig(area=(0.08, 1.0), ratio=(0.75, 4 / 3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop": True, "resized_crop": {}}, "augment: crop and resized_crop both choose the window; remove one"),
        ({"resized_crop": {"area": [0.5, 0.2]}}, "area goes from its lower to its upper bound, not from 0.5 to 0.2"),
        ({"resized_crop": {"ratio": [2, 1]}}, "ratio goes from its lower to its upper bound, not from 2.0 to 1.0"),
        ({"resized_crop": {"area": [0, 1]}}, r"augment.resized_crop.area.0: Input should be greater than 0"),
        ({"policy": {"strength": 11}}, r"augment.policy.strength: Input should be less than or equal to 10"),
        ({"colour": {"hue": 0.6}}, r"augment.colour.hue: Input should be less than or equal to 0.5"),
        ({"cutout": 1}, r"augment.cutout: Input should be less than 1"),
        ({"colour": {"brightnes": 0.1}}, r"unknown key 'brightnes' in augment.colour; did you mean 'brightness'\?"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config("", augment=values)
