"""Proves, from metadata alone, that a finished dataset is what a build would make.

Neither Beam nor TensorFlow is loaded for that: they take longer than the proof.
"""

from pathlib import Path

from pipelines.config import BuildConfig
from pipelines.recipe import Recipe, compare
from pipelines.sources import check_sources
from pipelines.versions.scan import load_scan, scan_sources
from pipelines.workspace.layout import BuildFolder
from pipelines.workspace.lock import exclusive
from shards.errors import ShardsmithError, UsageError
from shards.manifest import Manifest, read_manifest
from shards.verify import verify


@exclusive
def confirm_finished(config: BuildConfig) -> Manifest:
    """What `build` does where a dataset is finished."""
    check_sources(config)
    folder = BuildFolder(Path(config.output))
    folder.finish_publishing()
    return confirm(config, folder)


def confirm(config: BuildConfig, folder: BuildFolder) -> Manifest:
    """Says that there is nothing to do; refuses if there is."""
    manifest = read_manifest(folder.root)
    there = f"output {folder.root} already holds a finished dataset"
    if differences := compare(Recipe.of_manifest(manifest), Recipe.of(config)):
        raise UsageError(f"{there}, but {differences[0]}; choose another --output, or pass --overwrite")
    known = load_scan(folder)
    if known is None:
        raise UsageError(
            f"{there}, which does not know its sources: copied without {folder.seen_here}?; "
            "choose another --output, or pass --overwrite"
        )
    if known != scan_sources(config):
        raise UsageError(
            f"{there}, but its sources have changed since; take the changes up with `python -m pipelines append`, "
            "choose another --output, or pass --overwrite"
        )
    if problems := verify(folder.root, level="fast"):
        raise ShardsmithError(f"{there}, but {problems[0]}; mend it with `python -m pipelines repair`")
    complete = f"version {manifest.version} of {config.output} is complete ({manifest.counts.listed:,} inputs)"
    print(f"nothing to do: {complete}, and what its sources list and its settings are unchanged")
    return manifest
