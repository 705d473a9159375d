"""Finds pictures in two splits that look alike; who looks like whom at all is known from the clusters of `dedupe`."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from pipelines.finish.leaks import SHARED_AT_ONCE, Leak, Places, Row, make_leak, read_row
from pipelines.pictures.perceptual import LOOK_BYTES, distances, to_words
from pipelines.writing.seen import KEY, to_bytes

NEAR = "near"


class Picture(NamedTuple):
    """A record whose look is known; sorted, pictures stand in the order of the splits and keys."""

    row: Row
    look: bytes
    content: int


def find_near_leaks(places: Places, clusters: Path, limit: int, *, at_once: int = SHARED_AT_ONCE) -> Iterator[Leak]:
    """Each picture that looks like some in earlier splits, with the closest of them; `clusters` is duplicates.jsonl.

    Copies with the same bytes are left to the exact leaks.
    """
    for cluster_of in _read_clusters(clusters, at_once):
        alike: defaultdict[int, list[Picture]] = defaultdict(list)
        for number, picture in _read_pictures(places, cluster_of):
            alike[number].append(picture)
        pairs = [pair for pictures in alike.values() for pair in pair_up(sorted(pictures), limit)]
        for other, one, bits in sorted(pairs):
            yield make_leak(NEAR, places, one, other, distance=bits)


def _read_clusters(path: Path, at_once: int) -> Iterator[dict[bytes, int]]:
    """The keys of those that stay, each with the number of its cluster; whole clusters, some keys at a time."""
    found: dict[bytes, int] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            staying = [member["key"] for member in json.loads(line)["members"] if member["stays"]]
            if len(staying) > 1:
                found |= {to_bytes(key): number for key in staying}
            if len(found) >= at_once:
                yield found
                found = {}
    if found:
        yield found


def _read_pictures(places: Places, cluster_of: Mapping[bytes, int]) -> Iterator[tuple[int, Picture]]:
    """Records by the numbers of their clusters."""
    wanted = pa.array(list(cluster_of), pa.binary())
    for shard in places.shards:
        table = places.read(shard, KEY, "group", "given", "look", "content")
        is_wanted = pa.compute.is_in(table[KEY], value_set=wanted).to_numpy()
        for record in np.flatnonzero(is_wanted).tolist():
            key, look, content = (table[name][record].as_py() for name in (KEY, "look", "content"))
            if len(look) == LOOK_BYTES:
                yield cluster_of[key], Picture(read_row(places, shard, table, record), look, content)


def pair_up(pictures: Sequence[Picture], limit: int) -> Iterator[tuple[Row, Row, int]]:
    """Each picture (sorted) with the closest, and then the first, of earlier splits; and how many bits they differ."""
    words = to_words([picture.look for picture in pictures])
    splits = np.array([picture.row.split for picture in pictures])
    for place, picture in enumerate(pictures):
        earlier = int(np.searchsorted(splits, picture.row.split))
        bits = distances(words[:, place], words[:, :earlier])
        closest = int(bits.argmin()) if earlier else 0
        if earlier and bits[closest] <= limit and pictures[closest].content != picture.content:
            yield picture.row, pictures[closest].row, int(bits[closest])
