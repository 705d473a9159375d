"""The yardstick: read, decode, resize, encode, throw away; one process per core and nothing else.

Imports nothing of `pipelines` on purpose, so that it cannot become slower together with what it measures; a test holds
its bytes against those of a build. Run as `python -m benchmarks.bare TREE SIDE`.
"""

import multiprocessing
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

QUALITY = 95
_CHUNK = 16
# The processes fill the cores already.
cv2.setNumThreads(1)
cv2.ipp.setUseIPP(False)


def process_file(path: str, side: int) -> bytes:
    """The file as a centre-cropped square JPEG."""
    with open(path, "rb") as stream:
        data = stream.read()
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    short = min(height, width)
    scaled = ((2 * height * side + short) // (2 * short), (2 * width * side + short) // (2 * short))
    pixels = resize(decode(data, (height, width), scaled), scaled)
    top, left = (scaled[0] - side) // 2, (scaled[1] - side) // 2
    cropped = np.ascontiguousarray(pixels[top : top + side, left : left + side])
    encoded: bytes = simplejpeg.encode_jpeg(cropped, QUALITY, "RGB", "420", fastdct=False)
    return encoded


def decode(data: bytes, size: tuple[int, int], scaled: tuple[int, int]) -> Any:
    """RGB pixels, scaled down inside the DCT while twice the wanted sides are left."""
    shrinks = (shrink for shrink in (8, 4, 2) if all(-(-size[i] // shrink) >= 2 * scaled[i] for i in (0, 1)))
    shrink = next(shrinks, 1)
    sides = {"min_height": -(-size[0] // shrink), "min_width": -(-size[1] // shrink)}
    return simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False, **sides)


def resize(pixels: Any, scaled: tuple[int, int]) -> Any:
    """Down by area averaging, up by Lanczos."""
    if pixels.shape[:2] == scaled:
        return pixels
    shrinks = pixels.shape[0] > scaled[0] or pixels.shape[1] > scaled[1]
    return cv2.resize(pixels, scaled[::-1], interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LANCZOS4)


def is_usable(path: str, side: int) -> bool:
    """Whether the loop can process this file: a whole JPEG in colour or grey."""
    try:
        return bool(process_file(path, side))
    except (OSError, ValueError):
        return False


def usable_files(paths: list[str], side: int) -> list[str]:
    """Those of the paths that the loop can process, over all cores; also brings them into the page cache."""
    with multiprocessing.Pool(os.cpu_count()) as pool:
        usable = pool.map(partial(is_usable, side=side), paths, _CHUNK)
    return [path for path, good in zip(paths, usable, strict=True) if good]


def _process_and_drop(path: str, side: int) -> int:
    return len(process_file(path, side))


def main(tree: str, side: str) -> None:
    """Processes every JPEG of the tree."""
    paths = [str(path) for path in Path(tree).glob("*/*.jpg")]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        done = sum(1 for _ in pool.imap_unordered(partial(_process_and_drop, side=int(side)), paths, _CHUNK))
        pool.close()
        pool.join()  # Waited for, or their CPU time would not be counted.
    print(f"{done} images")


if __name__ == "__main__":
    main(*sys.argv[1:])
