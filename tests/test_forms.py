"""Arrays as pixels and as rows of features, held against plain NumPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from shards_data import thorough

from pipelines.pictures.forms import array_form, form_problem, parse_form, pixel_count, row_length, to_pixels, to_row
from pipelines.reasons import Reason, RejectedImage

NUMBERS = ["|b1", "|u1", "|i1", "<u2", ">u2", "<i4", ">i4", "<i8", ">u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]
FLOATS = [name for name in NUMBERS if "f" in name]
sides = st.integers(1, 6)
picture_shapes = st.tuples(sides, sides) | st.tuples(sides, sides, st.sampled_from([1, 3, 4]))


def form_of(array: np.ndarray[Any, Any]) -> str:
    return array_form(array.dtype, array.shape)


@given(dtype=st.sampled_from(NUMBERS), shape=arrays_of.array_shapes())
def test_forms_are_read_back(dtype, shape):
    assert parse_form(array_form(np.dtype(dtype), shape)) == (np.dtype(dtype), shape)


@pytest.mark.parametrize(
    ("form", "length", "pixels"), [("<f4:100", 100, None), ("|u1:28,30", 0, 840), ("<f8:5,4,3", 0, 20), ("", 0, None)]
)
def test_forms_tell_what_the_input_is(form, length, pixels):
    assert row_length(form) == length
    if pixels:
        assert pixel_count(form) == pixels


def over_white(colour: np.ndarray[Any, Any], alpha: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    share = alpha.astype(np.float64)[..., None] / 255
    return np.rint(colour * share + 255 * (1 - share)).astype(np.uint8)


def expected_pixels(levels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """RGB of 8-bit levels, in the plainest words."""
    if levels.ndim == 2:
        return np.stack([levels] * 3, axis=-1)
    if levels.shape[2] == 1:
        return np.concatenate([levels] * 3, axis=-1)
    return over_white(levels[..., :3], levels[..., 3]) if levels.shape[2] == 4 else levels


@thorough
@given(array=arrays_of.arrays(np.uint8, picture_shapes))
def test_levels_become_pixels(array):
    pixels = to_pixels(array.tobytes(), form_of(array))
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels, expected_pixels(array))


@thorough
@given(data=st.data(), dtype=st.sampled_from(FLOATS), shape=picture_shapes)
def test_floats_from_0_to_1_become_pixels(data, dtype, shape):
    width = np.dtype(dtype).itemsize * 8
    array = data.draw(arrays_of.arrays(dtype, shape, elements=st.floats(0, 1, width=width)))
    expected = expected_pixels(np.rint(255 * array.astype(np.float64)).astype(np.uint8))
    np.testing.assert_array_equal(to_pixels(array.tobytes(), form_of(array)), expected)


@thorough
@given(level=st.integers(0, 255), dtype=st.sampled_from(FLOATS))
def test_a_level_divided_by_255_comes_back(level, dtype):
    array = np.array([[level / 255]]).astype(dtype)
    assert to_pixels(array.tobytes(), form_of(array)).tolist() == [[[level] * 3]]


@thorough
@given(level=st.integers(0, 255))
def test_alpha_0_is_white_and_255_is_opaque(level):
    array = np.array([[[level] * 3 + [0], [level] * 3 + [255]]], np.uint8)
    assert to_pixels(array.tobytes(), form_of(array)).tolist() == [[[255] * 3, [level] * 3]]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.nan, "pixels are not all numbers"),
        (np.inf, "pixels from 0.5 to inf are not in 0..1"),
        (-np.inf, "pixels from -inf to 0.5 are not in 0..1"),
        (1.5, "pixels from 0.5 to 1.5 are not in 0..1"),
        (-0.25, "pixels from -0.25 to 0.5 are not in 0..1"),
        (255, "pixels from 0.5 to 255 are not in 0..1"),
    ],
)
def test_floats_outside_of_0_to_1_are_refused(dtype, value, told):
    array = np.full((2, 2), 0.5, dtype)
    array[1, 0] = value
    with pytest.raises(RejectedImage) as error:
        to_pixels(array.tobytes(), form_of(array))
    assert (error.value.reason, error.value.message) == (Reason.BAD_VALUES, told)


@thorough
@given(data=st.data(), dtype=st.sampled_from(NUMBERS), length=st.integers(1, 20))
def test_rows_are_32_bit_floats_or_refused(data, dtype, length):
    array = data.draw(arrays_of.arrays(dtype, length))
    with np.errstate(over="ignore"):
        expected = array.astype(np.float32)
    if np.isfinite(expected).all():
        row = to_row(array.tobytes(), form_of(array))
        assert row.dtype == np.dtype("<f4")
        assert row.tobytes() == expected.tobytes()
        return
    first = [bool(np.isfinite(value)) for value in expected].index(False)
    with pytest.raises(RejectedImage) as error:
        to_row(array.tobytes(), form_of(array))
    assert error.value.reason == Reason.BAD_VALUES
    assert error.value.message.startswith(f"feature {first} is ")


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (-np.inf, "-inf"), (1e300, "1e+300")])
def test_the_value_that_is_no_feature_is_named(value, shown):
    array = np.array([0, value, value])
    with pytest.raises(RejectedImage, match="feature 1 is") as error:
        to_row(array.tobytes(), form_of(array))
    assert error.value.message == f"feature 1 is {shown}, not a finite 32-bit float"


def test_bytes_that_do_not_fill_the_form_are_a_changed_file():
    with pytest.raises(RejectedImage) as error:
        to_pixels(bytes(5), "|u1:2,3")
    assert (error.value.reason, error.value.message) == (
        Reason.CHANGED, "5 bytes are not an array of |u1:2,3; did the file change?",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shape", "problem"),
    [
        ("<f4", (100,), ""),
        ("|b1", (1,), ""),
        ("|u1", (28, 28), ""),
        (">f8", (28, 28, 4), ""),
        ("<c8", (3,), "rows of complex64 are not features; they must be numbers"),
        ("<U3", (3,), "rows of <U3 are not features; they must be numbers"),
        ("<f4", (0,), "rows of no numbers are not features"),
        ("|b1", (2, 2), "pictures of bool are not read; they must be uint8, or float from 0 to 1"),
        ("<u2", (2, 2), "pictures of uint16 are not read; they must be uint8, or float from 0 to 1"),
        ("|u1", (2, 0), "pictures of shape (2, 0) have no pixels"),
        ("|u1", (3, 8, 8), "inputs of shape (3, 8, 8) have their channels first; move them last (numpy.moveaxis)"),
        (
            "|u1",
            (2, 8, 8, 3),
            "inputs of shape (2, 8, 8, 3) are neither pictures (height, width[, channels]) nor rows of features",
        ),
    ],
)
def test_what_cannot_be_an_input(dtype, shape, problem):
    assert form_problem(np.dtype(dtype), shape) == problem
