"""Bounding boxes follow their picture through Exif orientation, resize, crop and padding."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.config import BoxesConfig
from pipelines.pictures.images import FLIPS
from pipelines.pictures.resize import Geometry, Size
from pipelines.values import Box

_SLIVER = 1e-6  # of a side; records hold 32-bit floats, and no picture has a million pixels a side


@dataclass(frozen=True, slots=True)
class PlacedBoxes:
    """The boxes that remain, as fractions of the stored picture, and which of the given ones they were."""

    boxes: tuple[Box, ...]
    kept: tuple[int, ...]


def place_boxes(
    boxes: Sequence[Box], config: BoxesConfig, *, stored: Size, orientation: int, geometry: Geometry
) -> PlacedBoxes:
    """Moves boxes with a picture of `stored` (height, width) pixels; what lies outside the result is cut off."""
    upright = config.frame == "upright"
    frame = stored[::-1] if upright and orientation >= 5 else stored
    placed: list[Box] = []
    kept: list[int] = []
    for number, box in enumerate(boxes):
        fractions = box if config.unit == "fraction" else _divide(box, frame)
        turned = fractions if upright else orient_box(fractions, orientation)
        visible = clip(whole := move_box(turned, geometry))
        if not is_sliver(visible) and area(visible) > config.min_visible * area(whole):
            placed.append(visible)
            kept.append(number)
    return PlacedBoxes(tuple(placed), tuple(kept))


def _divide(box: Box, size: Size) -> Box:
    height, width = size
    return box[0] / width, box[1] / height, box[2] / width, box[3] / height


def orient_box(box: Box, orientation: int) -> Box:
    """A box in fractions, turned upright as `images.orient` turns the pixels."""
    left, top, right, bottom = box
    if orientation >= 5:
        left, top, right, bottom = top, left, bottom, right
    flip = FLIPS.get(orientation)
    if flip in (1, -1):
        left, right = 1 - right, 1 - left
    if flip in (0, -1):
        top, bottom = 1 - bottom, 1 - top
    return left, top, right, bottom


def move_box(box: Box, geometry: Geometry) -> Box:
    """A box in fractions of the upright picture, as fractions of the stored one; it may reach beyond."""
    (height, width), (final_height, final_width) = geometry.scaled, geometry.final
    down, across = geometry.pad[0] - geometry.crop[0], geometry.pad[1] - geometry.crop[1]
    left, top, right, bottom = box
    return (
        (left * width + across) / final_width,
        (top * height + down) / final_height,
        (right * width + across) / final_width,
        (bottom * height + down) / final_height,
    )


def clip(box: Box) -> Box:
    """What lies inside of the picture; without area if nothing does."""
    left, top, right, bottom = (min(1.0, max(0.0, side)) for side in box)
    return left, top, right, bottom


def is_sliver(box: Box) -> bool:
    """Whether a box has no extent, but for errors of rounding."""
    return min(box[2] - box[0], box[3] - box[1]) < _SLIVER


def area(box: Box) -> float:
    """The area, as a fraction of the picture's."""
    return (box[2] - box[0]) * (box[3] - box[1])
