"""What a picture looks like, in 256 bits: two pictures that look alike differ in few of them.

The hash is of the kind known as pHash. The upright picture becomes grey (luma), is averaged down to 64 x 64, and goes
through a discrete cosine transform. Of its 16 x 16 lowest frequencies each gives one bit: whether it is above the
median of all but the first. The first, the picture's brightness, tells nothing, and its bit is 0. Scale, format,
compression and brightness hardly change the order of the frequencies; crops, turns and mirrors do.

All of it is arithmetic of whole numbers, so that the same pixels have the same hash on every machine.
"""

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from pipelines.pictures.resize import Geometry, Pixels, resample

SIDE, FREQUENCIES = 64, 16
LOOK_BYTES = FREQUENCIES * FREQUENCIES // 8
Words = npt.NDArray[np.uint64]  # a column of four for each look
# Cosines times 2^14: the sums over 64 x 64 pixels stay far below 2^63.
_SCALE_BITS = 14
_COSINES = np.rint(
    2**_SCALE_BITS * np.cos(np.pi / SIDE * np.outer(np.arange(FREQUENCIES), np.arange(SIDE) + 0.5))
).astype(np.int64)
# A picture whose lowest frequencies deviate less than this (of 255 levels) from its mean is flat: its bits are noise.
FLAT_LEVELS = 1.0
# Stands in place of a look where it is known that there is none.
FLAT = b"-"


def perceptual_hash(pixels: Pixels) -> bytes:
    """The 256 bits of an upright picture; none (b"") of a flat one, which looks like any other flat one."""
    frequencies = low_frequencies(pixels)
    if _deviation(frequencies) < FLAT_LEVELS:
        return b""
    bits = frequencies > np.median(frequencies[1:])
    bits[0] = False
    return np.packbits(bits).tobytes()


def low_frequencies(pixels: Pixels) -> npt.NDArray[np.int64]:
    """The 256 lowest frequencies, row by row, as whole numbers."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    # In 16 bits: the averages of smooth pictures differ by less than a level of 8.
    small = resample(grey.astype(np.uint16) << 8, Geometry(scaled=(SIDE, SIDE), final=(SIDE, SIDE)))
    found: npt.NDArray[np.int64] = (_COSINES @ small.astype(np.int64) @ _COSINES.T).ravel()
    return found


def _deviation(frequencies: npt.NDArray[np.int64]) -> float:
    """The standard deviation that these frequencies give to the pixels, by Parseval's theorem."""
    grid = frequencies.reshape(FREQUENCIES, FREQUENCIES) / (256 * 4.0**_SCALE_BITS * SIDE * SIDE)
    grid[1:] *= np.sqrt(2)
    grid[:, 1:] *= np.sqrt(2)
    grid[0, 0] = 0.0
    return float(np.sqrt(np.square(grid).sum()))


def to_words(looks: Sequence[bytes]) -> Words:
    """Looks as columns of four 64-bit words, for comparing many at once."""
    return np.ascontiguousarray(np.frombuffer(b"".join(looks), "<u8").reshape(-1, LOOK_BYTES // 8).T)


def distances(one: Words, others: Words) -> npt.NDArray[np.int64]:
    """In how many bits one look differs from each of others."""
    found: npt.NDArray[np.int64] = np.bitwise_count(others ^ one[:, np.newaxis]).sum(axis=0, dtype=np.int64)
    return found


def distance(one: bytes, other: bytes) -> int:
    """In how many bits two looks differ."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).bit_count()
