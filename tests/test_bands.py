"""The join by bands finds what comparing all pairs would find, and a crowded bucket stays small."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.dedupe.bands import look_alikes, look_bands
from pipelines.dedupe.unions import Unions
from pipelines.pictures.perceptual import distance


def flip(look: bytes, bits: set[int]) -> bytes:
    """The look with some bits turned over."""
    return (int.from_bytes(look, "big") ^ sum(1 << bit for bit in bits)).to_bytes(32, "big")


def components(looks, pairs):
    unions = Unions[bytes]()
    for look in looks:
        unions.tie(look, look)
    for one, other in pairs:
        unions.tie(one, other)
    return sorted(map(sorted, unions.sets()))


BITS = st.sets(st.integers(0, 255), max_size=40)
# Few bits to choose from, so that many looks are close to each other.
CLOSE_BITS = st.sets(st.integers(0, 30), max_size=12)
LOOK = st.binary(min_size=32, max_size=32)


@given(look=LOOK, bits=BITS, limit=st.integers(0, 31))
def test_looks_within_the_distance_share_a_band(look, bits, limit):
    shared = set(look_bands(look, distance=limit)) & set(look_bands(flip(look, bits), distance=limit))
    assert shared or len(bits) > limit


@pytest.mark.parametrize("limit", [0, 1, 12, 31])
def test_bands_are_all_of_the_look(limit):
    look = bytes(range(32))
    bands = list(look_bands(look, distance=limit))
    assert len(set(bands)) == limit + 1
    # Each bit is in one band: turning any over changes exactly one of the names.
    for bit in range(256):
        other = list(look_bands(flip(look, {bit}), distance=limit))
        assert sum(one != two for one, two in zip(bands, other, strict=True)) == 1


@given(look=LOOK, flips=st.lists(CLOSE_BITS, max_size=12), limit=st.integers(0, 12))
def test_pairs_connect_what_all_pairs_would_connect(look, flips, limit):
    looks = [flip(look, bits) for bits in flips]
    every = [(one, other) for one in looks for other in looks if distance(one, other) <= limit]
    found = list(look_alikes(looks, distance=limit))
    assert all(distance(*pair) <= limit for pair in found)
    assert components(looks, found) == components(looks, every)
    assert len(found) < max(len(set(looks)), 1)


def test_the_join_by_bands_connects_the_same():
    random = np.random.default_rng(1)
    centres = [random.bytes(32) for _ in range(30)]
    flips = [set(random.choice(256, size=size, replace=False).tolist()) for size in (0, 3, 6, 9, 12, 15)]
    looks = [flip(centre, bits) for centre in centres for bits in flips]
    buckets: dict[bytes, list[bytes]] = {}
    for look in looks:
        for band in look_bands(look, distance=12):
            buckets.setdefault(band, []).append(look)
    joined = [pair for bucket in buckets.values() for pair in look_alikes(bucket, distance=12)]
    every = [(one, other) for one in looks for other in looks if distance(one, other) <= 12]
    assert components(looks, joined) == components(looks, every)


@pytest.mark.parametrize("spread", [3, 40], ids=["all alike", "none alike"])
def test_a_crowded_bucket_takes_memory_for_its_looks_and_not_for_its_pairs(spread):
    random = np.random.default_rng(spread)
    centre, count = random.bytes(32), 3000
    looks = [flip(centre, set(random.choice(256, size=spread, replace=False).tolist())) for _ in range(count)] * 3
    tracemalloc.start()
    found = sum(1 for _ in look_alikes(iter(looks), distance=12))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == (len(set(looks)) - 1 if spread == 3 else 0)
    assert peak < 500 * count  # all pairs would be a thousand times as many
