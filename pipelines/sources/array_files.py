"""Files that hold one array each, with the labels in files of their own: what `.npy` and IDX have in common."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.config import BuildConfig, SourceConfig
from pipelines.inputs.spool import Spool
from pipelines.inputs.storage import FileStat, find_files
from pipelines.sources.array_rows import LABEL, ArrayTable, check_tables, list_rows, partition_table
from pipelines.sources.base import Kind, Partition, Row
from pipelines.sources.files import source_files
from pipelines.sources.stored_arrays import StoredArray
from shards.errors import UsageError


def _no_labels(path: str) -> str:
    return ""


@dataclass(frozen=True)
class ArrayFiles:
    """A kind of such files: how one is opened, and where its labels usually lie ("" if nowhere)."""

    open: Callable[[str], StoredArray]
    usual_labels: Callable[[str], str] = _no_labels

    @property
    def kind(self) -> Kind:
        """The three functions of a kind."""
        return Kind(self.check, self.partition, self.rows)

    def check(self, source: SourceConfig, config: BuildConfig) -> None:
        """Refuses files that are damaged or do not fit together, and wishes that lone arrays cannot fulfil."""
        if config.columns:
            name = next(iter(config.columns))
            raise UsageError(f"source.path {source.path} holds one array and no column {name!r}; use an .npz file")
        for path, labels in self._pairs(source, config):
            if not labels and config.labels.kind != "none":
                raise UsageError(f"{path} has no labels; set source.labels_path, or labels.kind: none")
        tables = [self._table(path, labels) for path, labels in self._pairs(source, config)]
        check_tables(tables, config)

    def partition(self, source: SourceConfig, config: BuildConfig) -> list[Partition]:
        """Ranges of rows of every file; the note is the path of its labels."""
        return [
            part
            for path, labels in self._pairs(source, config)
            for part in partition_table(self._table(path, labels), source, note=labels)
        ]

    def rows(self, part: Partition, source: SourceConfig, config: BuildConfig, spool: Spool) -> Iterator[Row]:
        """A row per row."""
        return list_rows(self._table(part.path, part.note), part, source, config, spool)

    def _table(self, path: str, labels: str) -> ArrayTable:
        return ArrayTable(self.open(path), {LABEL: self.open(labels)} if labels else {})

    def _pairs(self, source: SourceConfig, config: BuildConfig) -> list[tuple[str, str]]:
        """Each file with that of its labels; several are paired in the order of their names."""
        files = source_files(source)
        if config.labels.kind == "none":
            return [(file.path, "") for file in files]
        if not source.labels_path:
            return [(file.path, self.usual_labels(file.path)) for file in files]
        return list(zip((file.path for file in files), _label_paths(source, files), strict=True))


def _label_paths(source: SourceConfig, files: list[FileStat]) -> list[str]:
    found = find_files(source.labels_path)
    for file in found:
        if file.problem:
            raise UsageError(f"source.labels_path {file.path}: {file.problem}")
    if len(found) != len(files):
        counts = f"names {len(found)} files, but source.path {source.path} {len(files)}"
        raise UsageError(f"source.labels_path {source.labels_path} {counts}")
    return [file.path for file in found]
