"""Inputs that several sources name: they are in the dataset once, whatever each source calls them.

Sources put their names before their keys, so the same file has two keys, and could be hashed into two splits: a leak.
It belongs to the first source that names it; for the others it is a duplicate. Inside of one source a file may be
named by several rows on purpose (two crops, two questions), and stays.
"""

import os
from collections.abc import Iterable, Iterator

from pipelines.inputs.storage import is_remote
from pipelines.reasons import LISTED_TWICE
from pipelines.values import Fault, InputRef


def place_of(ref: InputRef) -> str:
    """The same text for the same bytes, whatever path leads to them."""
    path = ref.location.path
    return f"{path if is_remote(path) else os.path.realpath(path)}\0{ref.location.offset}"


def mark_overlaps(refs: Iterable[InputRef], names: tuple[str, ...]) -> Iterator[InputRef]:
    """The refs to one place, those that do not belong to its first source with a fault that says so."""
    found = list(refs)
    owner = min(ref.source for ref in found)
    told = Fault(LISTED_TWICE, f"source {names[owner]!r} names the same input; it is in the dataset once")
    for ref in found:
        yield ref if ref.source == owner else ref._replace(fault=told)
