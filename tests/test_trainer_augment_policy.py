"""The operations of a policy: shape, range, what level 0 and the greatest do; and how they are drawn."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainer.reading import policy
from trainer.reading.policy import LEVELLED, OPERATIONS, WHOLE, random_policy
from trainer.reading.seeds import record_seed
from trainer.reading.settings import PolicyConfig

NOISE = np.random.default_rng(4).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def apply(name: str, level: float, pixels: Any = NOISE) -> Any:
    result = tf.function(OPERATIONS[name])(tf.constant(pixels), tf.constant(level))
    assert result.shape == pixels.shape
    assert result.dtype == tf.uint8
    return result.numpy()


@pytest.mark.parametrize("name", LEVELLED)
def test_level_0_leaves_a_picture_as_it_is_and_others_do_not(name: str) -> None:
    np.testing.assert_array_equal(apply(name, 0.0), NOISE)
    up, down = apply(name, 0.9), apply(name, -0.9)
    assert (up != NOISE).any()
    assert np.array_equal(up, down) == (name in ("posterize", "solarize")), "the sign is a direction"


@pytest.mark.parametrize("name", WHOLE)
def test_operations_without_levels_ignore_them(name: str) -> None:
    np.testing.assert_array_equal(apply(name, 0.1), apply(name, -1.0))


def test_rotation_is_pillows() -> None:
    rows, columns = np.mgrid[0:41, 0:41]
    smooth = np.stack([rows * 6, columns * 6, rows * 3 + columns * 3], axis=-1).astype(np.uint8)
    found = apply("rotate", 1.0, smooth).astype(int)
    turned = Image.fromarray(smooth, "RGB").rotate(30, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))
    differences = np.abs(found - np.asarray(turned).astype(int))
    assert min(differences.mean(), np.abs(found - np.asarray(turned)[::-1, ::-1].astype(int)).mean()) < 4
    assert differences[15:26, 15:26].max() <= 2
    assert (found[0, 0] == 128).all()


def test_shears_fix_the_middle() -> None:
    for name in ("shear_x", "shear_y"):
        pixels = np.zeros((21, 21, 3), np.uint8)
        pixels[10, 10] = 255
        assert (apply(name, 1.0, pixels)[10, 10] == 255).all()
    stripe = np.zeros((21, 21, 3), np.uint8)
    stripe[:, 10] = 255
    columns = apply("shear_x", 1.0, stripe)[..., 0].argmax(axis=1)
    assert (columns[0], columns[10], columns[20]) == (13, 10, 7)


@pytest.mark.parametrize(("level", "moved"), [(1.0, 9), (-1.0, -9), (0.5, 4)])
def test_translation_moves_by_a_share_of_the_side(level: float, moved: int) -> None:
    found = apply("translate_x", level)
    kept = NOISE[:, moved:] if moved > 0 else NOISE[:, :moved]
    np.testing.assert_array_equal(found[:, :-moved] if moved > 0 else found[:, -moved:], kept)
    assert (found[:, -moved:] if moved > 0 else found[:, :-moved]).tolist() == [[[128] * 3] * abs(moved)] * 20
    down = apply("translate_y", 1.0)
    np.testing.assert_array_equal(down[:-6], NOISE[6:])
    assert (down[-6:] == 128).all()


def test_posterize_and_solarize_get_stronger() -> None:
    assert len(np.unique(apply("posterize", 1.0))) == 2**policy.FEWEST_BITS
    assert len(np.unique(apply("posterize", 0.5))) == 2**6
    np.testing.assert_array_equal(apply("solarize", 1.0), 255 - NOISE)
    np.testing.assert_array_equal(apply("solarize", 0.5), np.where(NOISE < 128, NOISE, 255 - NOISE))


def test_all_operations_are_drawn_in_both_directions() -> None:
    config = PolicyConfig(operations=1, strength=10)
    pixels = tf.constant(NOISE)

    @tf.function
    def changed(ordinal: Any) -> Any:
        return random_policy(pixels, config, seed=record_seed(5, epoch=0, ordinal=ordinal))

    possible = {apply(name, level).tobytes(): name for level in (-1.0, 1.0) for name in OPERATIONS}
    seen = Counter(possible[changed(tf.constant(n, tf.int64)).numpy().tobytes()] for n in range(420))
    # 30 each on average; solarize at its strongest is the same as invert.
    seen["invert"] += seen.pop("solarize", 0)
    assert seen.keys() == OPERATIONS.keys() - {"solarize"}
    assert all(10 <= count <= (100 if name == "invert" else 60) for name, count in seen.items())


def test_operations_follow_each_other() -> None:
    pixels, seed = tf.constant(NOISE), record_seed(5, epoch=0, ordinal=0)
    numbers = [policy.uniform(seed, policy.Use.POLICY + n, (2,)).numpy() for n in range(2)]
    expected = pixels
    for chosen, side in numbers:
        operation = list(OPERATIONS.values())[int(chosen * len(OPERATIONS))]
        expected = operation(expected, tf.constant(-0.9 if side < 0.5 else 0.9))
    found = random_policy(pixels, PolicyConfig(operations=2, strength=9), seed=seed)
    np.testing.assert_array_equal(found, expected)
