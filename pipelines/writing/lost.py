"""Tells a bad input from a lost source: a disk that was unmounted must not become a million rejects."""

import os

from pipelines.config import BuildConfig
from pipelines.inputs.storage import glob_root, is_glob, is_remote
from pipelines.values import InputRef
from pipelines.writing.seen import is_spooled
from shards.errors import ShardsmithError


def check_still_there(ref: InputRef, config: BuildConfig) -> None:
    """Stops the build if not only this input is gone but what held it when it was listed: source, folder, archive."""
    path = ref.location.path
    if is_spooled(ref, config) or is_remote(path):
        return
    source = config.all_sources[ref.source]
    places = [glob_root(source.path) if is_glob(source.path) else source.path, source.root or ""]
    if not ref.fault:  # else nothing is known to have been there
        places.append(os.path.dirname(path) if ref.location.is_whole_file else path)
    for place in filter(None, places):
        if problem := find_loss(place):
            raise ShardsmithError(
                f"source {source.path} is gone: {place} {problem}, though its inputs have been listed; "
                "bring it back and give the same command again: it goes on"
            )


def find_loss(place: str) -> str:
    """Why nothing can be read at a place; "" if something can."""
    try:
        if not os.path.isdir(place):
            with open(place, "rb"):
                return ""
        with os.scandir(place) as entries:
            return "" if any(entries) else "is empty"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
