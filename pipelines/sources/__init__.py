"""Every kind of source as references.

What is wrong with a source as a whole is an error before work starts (`check_sources`); what is wrong with one input
becomes that input's fault. No image is opened here, and nothing that grows with the source is held.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.content import digest_of
from pipelines.inputs.spool import Spool, spool_path, write_spool
from pipelines.inputs.storage import check_remote, exists, file_stat, is_folder, is_glob, is_remote
from pipelines.sources import archives, arrays, folders, generators, idx, listings, tables, tfrecords
from pipelines.sources.base import Kind, Partition
from pipelines.sources.metadata import FILE_NAME, METADATA_KINDS, metadata_files
from pipelines.sources.rows import RowReader, read_names
from pipelines.values import InputRef
from shards.errors import UsageError

KINDS: dict[str, Kind] = {
    "folder": folders.KIND,
    "csv": listings.KIND,
    "tsv": listings.KIND,
    "jsonl": listings.KIND,
    "npy": arrays.NPY,
    "npz": arrays.NPZ,
    "idx": idx.KIND,
    "tar": archives.KIND,
    "zip": archives.KIND,
    "tfrecord": tfrecords.KIND,
    "parquet": tables.KIND,
    "python": generators.KIND,
}
# By the end of the name; the longest that fits decides.
SUFFIX_KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv.gz": "csv",
    ".tsv.gz": "tsv",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
    ".parquet": "parquet",
    ".npy": "npy",
    ".npz": "npz",
    "-ubyte": "idx",
    "-ubyte.gz": "idx",
    **dict.fromkeys(archives.TAR_SUFFIXES, "tar"),
    **dict.fromkeys(archives.ZIP_SUFFIXES, "zip"),
    **dict.fromkeys(tfrecords.SUFFIXES, "tfrecord"),
}
# TensorFlow numbers shards behind the suffix: `train.tfrecord-00000-of-00012`, or `train.tfrecord-*` for all.
_SHARD_NUMBER = re.compile(r"-[\d*?]+(-of-[\d*?]+)?$")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:function


def check_sources(config: BuildConfig) -> None:
    """Refuses, before any work, sources that cannot be listed and names that cannot be read."""
    read_names(config)
    for source in config.all_sources:
        if is_remote(source.path):
            check_remote(source.path)
        resolved = resolve(source)
        KINDS[resolved.kind].check(resolved, config)


def resolve(source: SourceConfig) -> SourceConfig:
    """The source with the kind that its path shows, if it has none."""
    if source.kind != "python" and not is_glob(source.path) and not exists(source.path):
        if source.kind == "auto" and _FUNCTION.fullmatch(source.path):
            return _of_kind(source, "python")
        raise UsageError(f"source.path {source.path} does not exist")
    return source if source.kind != "auto" else _of_kind(source, _kind_of(source.path))


def _of_kind(source: SourceConfig, kind: str) -> SourceConfig:
    return source.model_copy(update={"kind": kind})


def _kind_of(path: str) -> str:
    if is_folder(path):
        return _metadata_kind(path) or "folder"
    name = _SHARD_NUMBER.sub("", path.rpartition("/")[2].lower())
    for suffix in sorted(SUFFIX_KINDS, key=len, reverse=True):
        if name.endswith(suffix):
            return SUFFIX_KINDS[suffix]
    if is_glob(path):
        return "folder"
    raise UsageError(
        f"source.path {path}: neither a folder nor a file that ends in {', '.join(SUFFIX_KINDS)}; set source.kind"
    )


def _metadata_kind(folder: str) -> str:
    """The kind of the metadata files of a Hugging Face folder; "" for other folders, whatever they call `metadata`."""
    kinds = []
    for kind in METADATA_KINDS:
        column_names = tables.column_names if kind == "parquet" else listings.column_names
        if any(FILE_NAME in column_names(part) for part in metadata_files(folder, kind)):
            kinds.append(kind)
    if len(kinds) > 1:
        raise UsageError(f"source.path {folder} has both metadata.{kinds[0]} and metadata.{kinds[1]}; set source.kind")
    return kinds[0] if kinds else ""


def partition_sources(config: BuildConfig) -> list[Partition]:
    """Cuts all sources into pieces that workers list independently."""
    parts: list[Partition] = []
    for number, source in enumerate(config.all_sources):
        resolved = resolve(source)
        for part in KINDS[resolved.kind].partition(resolved, config):
            parts.append(part._replace(source=number, number=len(parts)))
    return parts


def list_partition(part: Partition, config: BuildConfig, spool_folder: str = "") -> Iterator[InputRef]:
    """The refs of one piece; payloads that cannot be read in place go to `spool_folder`, or nowhere in a dry run."""
    if part.spooled and spool_folder:
        path = spool_path(Path(spool_folder), part.number)
        return write_spool(path, partial(_refs, part, config), stamp=stamp(part, config))
    return _refs(part, config, Spool("", None))


def stamp(part: Partition, config: BuildConfig) -> int:
    """The identity of a partition that is not listed: what it is part of, and the size and time of its files."""
    source = config.all_sources[part.source]
    files = [tuple(file_stat(path)) for path in (part.path, source.labels_path) if path and exists(path)]
    return digest_of((*part._replace(number=0), source.model_dump(mode="json"), files))


def _refs(part: Partition, config: BuildConfig, spool: Spool) -> Iterator[InputRef]:
    source = _of_kind(config.all_sources[part.source], part.kind)
    reader = RowReader(source, config, read_names(config))
    for row in KINDS[part.kind].rows(part, source, config, spool):
        yield reader.ref(row, part)
