"""Finds looks that differ in few bits without comparing all pairs.

A look is cut into `distance` + 1 bands. Two looks that differ in no more than `distance` bits are equal in one band at
least, so only looks that share a band are compared, and no pair is missed. The bits of a band come from all over the
look, because neighbouring frequencies say much the same, and bands of neighbours would be crowded.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from pipelines.pictures.perceptual import LOOK_BYTES, distances, to_words

_BITS = 8 * LOOK_BYTES
# An odd step visits every bit once; this one puts neighbours, and bits one row apart, far from each other.
_SPREAD = np.arange(_BITS) * 101 % _BITS


def look_bands(look: bytes, *, distance: int) -> Iterator[bytes]:
    """The names of the buckets that a look falls in, one for each band."""
    bits = np.unpackbits(np.frombuffer(look, np.uint8))[_SPREAD]
    for number, band in enumerate(np.array_split(bits, distance + 1)):
        yield bytes([number]) + np.packbits(band).tobytes()


def look_alikes(looks: Iterable[bytes], *, distance: int) -> Iterator[tuple[bytes, bytes]]:
    """Pairs within `distance` that connect all looks which such pairs connect.

    Equal looks count once, and what has been connected is not compared again. So a crowded bucket gives fewer pairs
    than it has looks and takes some 100 bytes for each; its time grows with the square of those that are not alike.
    """
    distinct = sorted(set(looks))
    words = others = to_words(distinct)
    left = np.arange(len(distinct))
    while len(left) > 1:
        reached, left, others = [left[0]], left[1:], others[:, 1:]
        while reached and len(left):
            one = reached.pop()
            near = distances(words[:, one], others) <= distance
            if near.any():
                yield from ((distinct[one], distinct[other]) for other in left[near])
                reached += list(left[near])
                left, others = left[~near], others[:, ~near]
