"""Resize geometry as values (`plan_resize`), and the one function that carries a plan out on pixels (`resample`).

All sides are (height, width). `only_if_larger` leaves a picture as it is when it is already not larger than the target:

* keep_ratio: its shortest side is at most `size`;
* keep_ratio_largest: its longest side is at most `size`;
* exact, center_crop, border: both sides are at most those of the box (border then adds no padding either).
"""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.config import ResizeConfig

Pixels = npt.NDArray[np.uint8]  # height x width x RGB, uint8
Size = tuple[int, int]

WHITE = (255, 255, 255)
# The power-of-two DCT scales are the ones with SIMD code; 5/8 to 7/8 are slower than decoding the whole picture.
DCT_SHRINKS = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Scale to `scaled`, cut at `crop` or centre with `pad` (both top, left), and the picture has the size `final`."""

    scaled: Size
    final: Size
    crop: Size = (0, 0)
    pad: Size = (0, 0)


def plan_resize(height: int, width: int, config: ResizeConfig) -> Geometry:
    """Returns how an upright picture of this size becomes the stored one."""
    size = (height, width)
    if config.mode == "none" or (config.only_if_larger and not _is_larger(size, config)):
        return Geometry(scaled=size, final=size)
    box = config.box
    match config.mode:
        case "keep_ratio":
            scaled = _scale_to_cover(size, box)
        case "keep_ratio_largest":
            scaled = _scale_to_fit(size, box)
        case "center_crop":
            scaled = _scale_to_cover(size, box)
            return Geometry(scaled, box, crop=((scaled[0] - box[0]) // 2, (scaled[1] - box[1]) // 2))
        case "border":
            scaled = _scale_to_fit(size, box)
            return Geometry(scaled, box, pad=((box[0] - scaled[0]) // 2, (box[1] - scaled[1]) // 2))
        case _:
            scaled = box
    return Geometry(scaled=scaled, final=scaled)


def _is_larger(size: Size, config: ResizeConfig) -> bool:
    if config.mode == "keep_ratio":
        return min(size) > min(config.box)
    return size[0] > config.box[0] or size[1] > config.box[1]


def _scale_to_cover(size: Size, box: Size) -> Size:
    (height, width), (box_height, box_width) = size, box
    if box_height * width >= box_width * height:
        return box_height, _scale_side(width, box_height, height)
    return _scale_side(height, box_width, width), box_width


def _scale_to_fit(size: Size, box: Size) -> Size:
    (height, width), (box_height, box_width) = size, box
    if box_height * width <= box_width * height:
        return box_height, _scale_side(width, box_height, height)
    return _scale_side(height, box_width, width), box_width


def _scale_side(side: int, numerator: int, denominator: int) -> int:
    # Whole-number arithmetic: a half rounds up on every machine.
    return max(1, (2 * side * numerator + denominator) // (2 * denominator))


def jpeg_shrink(size: Size, scaled: Size) -> int:
    """Returns 1, 2, 4 or 8: how much smaller a JPEG may be decoded and still have twice the `scaled` sides.

    The factor of two leaves the last step to area averaging, which the eye and the network see; the DCT does the rest.
    """
    for shrink in DCT_SHRINKS:
        if -(-size[0] // shrink) >= 2 * scaled[0] and -(-size[1] // shrink) >= 2 * scaled[1]:
            return shrink
    return 1


def resample(pixels: Pixels, geometry: Geometry) -> Pixels:
    """Carries out the plan; the pixels may come in any size (a JPEG decoder may have scaled them down already)."""
    pixels = _scale(pixels, geometry.scaled)
    (top, left), (height, width) = geometry.crop, geometry.final
    if geometry.final == geometry.scaled:
        return pixels
    if geometry.pad != (0, 0) or height > geometry.scaled[0] or width > geometry.scaled[1]:
        return _pad(pixels, geometry)
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])


def _scale(pixels: Pixels, size: Size) -> Pixels:
    current = pixels.shape[:2]
    # Two steps, for one side may shrink while the other grows, and then OpenCV's INTER_AREA would not average.
    shrunk = (min(size[0], current[0]), min(size[1], current[1]))
    if shrunk != current:
        pixels = cv2.resize(pixels, shrunk[::-1], interpolation=cv2.INTER_AREA)
    if shrunk != size:
        pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LANCZOS4)
    return pixels


def _pad(pixels: Pixels, geometry: Geometry) -> Pixels:
    (top, left), (height, width) = geometry.pad, geometry.final
    bottom, right = height - top - geometry.scaled[0], width - left - geometry.scaled[1]
    padded: Pixels = cv2.copyMakeBorder(pixels, top, bottom, left, right, cv2.BORDER_CONSTANT, value=WHITE)
    return padded
