"""Boxes follow their pictures: rectangles are drawn, processed as a build does it, and looked for in the result."""

import io
from typing import Any

import numpy as np
import pytest
from conftest import make_config, make_ref
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from pipelines.config import BoxesConfig, BuildConfig
from pipelines.pictures.boxes import clip, orient_box, place_boxes
from pipelines.pictures.process import Made, Task, process_input
from pipelines.pictures.resize import Geometry
from pipelines.sources.base import Partition, Row
from pipelines.sources.rows import RowReader
from pipelines.values import Box, Location
from shards.example import decode_example

ORIENTATION_TAG = 0x0112
RED = (255, 0, 0)
RESIZES = (
    "none", "exact:40", "exact:60x30", "keep_ratio:40", "keep_ratio_largest:40", "center_crop:40", "center_crop:50x24",
    "border:40", "border:24x60", "exact:200:only_if_larger",
)  # fmt: skip


def config_of(resize: str = "none", **boxes: Any) -> BuildConfig:
    return make_config("x", "y", boxes=boxes, image={"resize": resize, "encode": {"format": "png"}})


def draw(size: tuple[int, int], *boxes: Box) -> Image.Image:
    """A black picture of (width, height) with red rectangles."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    for left, top, right, bottom in boxes:
        pixels[int(top) : int(bottom), int(left) : int(right)] = RED
    return Image.fromarray(pixels)


def save(image: Image.Image, kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": 100, "subsampling": 0} if kind == "jpeg" else {}
    image.save(stream, kind, exif=exif, **options)
    return stream.getvalue()


def red_extent(image: Image.Image) -> Box | None:
    """Left, top, right, bottom of the red pixels (white padding and grey edges are none)."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    rows, columns = np.nonzero(pixels[:, :, 0] - pixels[:, :, 1] > 127)
    if not len(rows):
        return None
    return float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1)


def process(data: bytes, boxes: tuple[Box, ...], config: BuildConfig, **fields: Any) -> tuple[Made, dict[str, Any]]:
    ref = make_ref("k", "cat", boxes=boxes, **fields)
    outcome = process_input(Task(ref, (0,), data), config)
    assert isinstance(outcome, Made), outcome
    return outcome, decode_example(outcome.record)


def stored_boxes(example: dict[str, Any]) -> list[Box]:
    """The record's boxes as left, top, right, bottom in pixels of its picture."""
    (height,), (width,) = example["height"], example["width"]
    rows = np.reshape(example["boxes"], (-1, 4))
    return [(left * width, top * height, right * width, bottom * height) for top, left, bottom, right in rows]


@st.composite
def scenes(draw_value: st.DrawFn) -> tuple[tuple[int, int], Box]:
    """A picture's size and a box in it of at least a third of each side."""
    width, height = draw_value(st.integers(30, 120)), draw_value(st.integers(30, 120))
    across, down = draw_value(st.integers(width // 3, width)), draw_value(st.integers(height // 3, height))
    left, top = draw_value(st.integers(0, width - across)), draw_value(st.integers(0, height - down))
    return (width, height), (left, top, left + across, top + down)


def assert_found_where_the_box_is(example: dict[str, Any]) -> None:
    seen = red_extent(Image.open(io.BytesIO(example["image"][0])))
    boxes = stored_boxes(example)
    if not boxes:
        assert seen is None, "a box was dropped, but its rectangle is in the picture"
        return
    (box,) = boxes
    if seen is None:
        assert min(box[2] - box[0], box[3] - box[1]) < 1, "a box was kept, but its rectangle is not in the picture"
        return
    assert seen == pytest.approx(box, abs=1.0)


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("orientation", range(1, 9))
@settings(deadline=None, max_examples=12)
@given(scene=scenes(), kind=st.sampled_from(["png", "jpeg"]), upright=st.booleans())
def test_a_rectangle_is_where_its_box_says(resize, orientation, scene, kind, upright):
    size, box = scene
    data = save(draw(size, box), kind, orientation)
    if upright:  # Pillow turns the picture, and the box is what is seen then
        turned = ImageOps.exif_transpose(Image.open(io.BytesIO(save(draw(size, box), "png", orientation))))
        box = red_extent(turned)
    made, example = process(data, (box,), config_of(resize, frame="upright" if upright else "stored"))
    assert_found_where_the_box_is(example)
    assert (made.boxes_kept, made.boxes_dropped) in ((1, 0), (0, 1))
    assert made.boxes_kept == len(example["boxes"]) // 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("resize", ["exact:64", "center_crop:48", "border:64x40"])
def test_a_jpeg_that_is_scaled_while_it_is_decoded(resize, orientation):
    size, box = (801, 603), (203, 151, 555, 401)
    _, example = process(save(draw(size, box), "jpeg", orientation), (box,), config_of(resize))
    assert len(example["boxes"]) == 4
    assert_found_where_the_box_is(example)


def test_boxes_of_arrays():
    pixels = np.asarray(draw((50, 40), (10, 20, 30, 35)))
    location = Location("a.npy", pixels.nbytes, offset=0, form="|u1:40,50,3")
    _, example = process(pixels.tobytes(), ((10.0, 20.0, 30.0, 35.0),), config_of("center_crop:40"), location=location)
    assert stored_boxes(example) == [pytest.approx((5, 20, 25, 35), abs=1e-4)]
    assert_found_where_the_box_is(example)


def test_several_boxes_keep_their_order_and_lose_what_is_cropped_away():
    # 90x30 -> the middle 30x30 remains, that is columns 30 to 60.
    boxes = ((0.0, 5.0, 20.0, 25.0), (40.0, 5.0, 50.0, 25.0), (20.0, 0.0, 40.0, 30.0), (60.0, 0.0, 90.0, 30.0))
    columns = {"name": {"type": "text", "per": "box"}, "score": {"type": "float", "per": "box"}, "n": {"type": "int"}}
    config = make_config("x", "y", boxes={}, columns=columns, image={"resize": "center_crop:30"})
    cells = (("left", "middle", "half", "edge"), (0.0, 1.0, 2.0, 3.0), 7)
    made, example = process(save(draw((90, 30)), "png", 1), boxes, config, columns=cells)
    assert stored_boxes(example) == [pytest.approx((10, 5, 20, 25)), pytest.approx((0, 0, 10, 30))]
    assert (example["name"], example["score"], example["n"]) == ([b"middle", b"half"], [1.0, 2.0], [7])
    assert (made.boxes_kept, made.boxes_dropped) == (2, 2)


def test_no_boxes_are_an_empty_list():
    made, example = process(save(draw((20, 20)), "png", 1), (), config_of())
    assert example["boxes"] == []
    assert (made.boxes_kept, made.boxes_dropped) == (0, 0)


def test_boxes_that_reach_beyond_the_picture_are_clipped():
    boxes = ((-10.0, 5.0, 20.0, 50.0), (25.0, -5.0, 100.0, 10.0), (-9.0, -9.0, 99.0, 99.0), (40.0, 0.0, 50.0, 30.0))
    made, example = process(save(draw((40, 30)), "png", 1), boxes, config_of())
    assert stored_boxes(example) == [
        pytest.approx((0, 5, 20, 30)), pytest.approx((25, 0, 40, 10)), pytest.approx((0, 0, 40, 30)),
    ]  # fmt: skip
    assert made.boxes_dropped == 1  # the last begins where the picture ends


@pytest.mark.parametrize(("min_visible", "kept"), [(0, 3), (0.2, 3), (0.25, 2), (0.49, 2), (0.5, 1), (0.99, 1)])
def test_min_visible_drops_boxes_of_which_too_little_remains(min_visible, kept):
    boxes = ((0.0, 0.0, 40.0, 30.0), (20.0, 0.0, 40.0, 30.0), (40.0, 10.0, 50.0, 20.0))  # 1/4, 1/2, all inside 30..60
    _, example = process(save(draw((90, 30)), "png", 1), boxes, config_of("center_crop:30", min_visible=min_visible))
    assert len(stored_boxes(example)) == kept


def test_what_only_rounding_left_of_a_box_is_dropped():
    config = BoxesConfig(unit="fraction")
    slivers = [(1 - 1e-12, 0.0, 2.0, 1.0), (0.0, -1.0, 1.0, 1e-12), (0.0, 0.0, 1e-5, 1.0)]
    placed = place_boxes(slivers, config, stored=(9, 9), orientation=1, geometry=Geometry((9, 9), (9, 9)))
    assert placed.kept == (2,)


PIXELS, FRACTIONS = (10.0, 6.0, 30.0, 24.0), (0.25, 0.2, 0.75, 0.8)
FORMATS = {
    "xyxy": lambda left, top, right, bottom: [left, top, right, bottom],
    "xywh": lambda left, top, right, bottom: [left, top, right - left, bottom - top],
    "yxyx": lambda left, top, right, bottom: [top, left, bottom, right],
    "cxcywh": lambda left, top, right, bottom: [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top],
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("unit", ["pixels", "fraction"])
def test_every_format_and_unit_says_the_same(form, unit):
    given_box = FORMATS[form](*(PIXELS if unit == "pixels" else FRACTIONS))
    config = config_of(format=form, unit=unit)
    row = Row("line 1", "k", {"label": "cat", "boxes": [given_box]}, Location("x", 1))
    ref = RowReader(config.all_sources[0], config).ref(row, Partition(0, "jsonl", "x", "."))
    assert ref.fault is None
    _, example = process(save(draw((40, 30)), "png", 1), ref.boxes, config)
    assert stored_boxes(example) == [pytest.approx(PIXELS, abs=1e-5)]


@given(
    st.tuples(*[st.floats(-3, 3)] * 4),
    st.integers(1, 8),
    st.tuples(*[st.integers(1, 50)] * 6),
    st.sampled_from(["stored", "upright"]),
    st.floats(0, 0.9),
)
def test_what_is_stored_always_lies_inside_and_has_area(sides, orientation, sizes, frame, min_visible):
    left, right = sorted(sides[:2])
    top, bottom = sorted(sides[2:])
    scaled, final, moved = sizes[:2], sizes[2:4], sizes[4:]
    config = BoxesConfig(unit="fraction", frame=frame, min_visible=min_visible)
    geometry = Geometry(scaled, final, crop=moved)
    placed = place_boxes(
        [(left, top, right, bottom)], config, stored=(9, 9), orientation=orientation, geometry=geometry
    )
    assert placed.kept in ((), (0,))
    for box in np.asarray(placed.boxes, np.float32):  # as records hold them
        assert 0 <= box[0] < box[2] <= 1
        assert 0 <= box[1] < box[3] <= 1


@given(st.tuples(*[st.floats(0, 1)] * 4), st.integers(1, 8))
def test_turning_back_gives_the_box_again(sides, orientation):
    box = (min(sides[:2]), min(sides[2:]), max(sides[:2]), max(sides[2:]))
    back = {6: 8, 8: 6}.get(orientation, orientation)  # all others undo themselves
    assert orient_box(orient_box(box, orientation), back) == pytest.approx(box)
    assert clip(orient_box(box, orientation)) == pytest.approx(orient_box(box, orientation))
