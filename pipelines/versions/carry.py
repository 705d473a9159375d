"""Inputs that are carried over: no source is asked for them, and what became of them goes into another shard as it is.

So a shard can be made again although some of its inputs are no longer listed, and shards can be merged although their
sources are gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa

from pipelines.reasons import DUPLICATES
from pipelines.values import RECORD, Before, Fault, InputRef, Location, PlannedShard
from pipelines.workspace.layout import BuildFolder
from pipelines.writing.facts import LABEL_NAME
from pipelines.writing.seen import DIGEST, IDENTITY, KEY, REASON, SOURCE, read_seen, to_text
from shards.errors import ShardsmithError
from shards.manifest import Manifest, read_manifest
from shards.records import read_index


@dataclass(frozen=True)
class Carrier:
    """Gives the inputs of a dataset as refs to what became of them; `form` is that of all of them."""

    root: Path
    form: str = ""

    @classmethod
    def of(cls, root: Path) -> "Carrier":
        """The carrier of a complete dataset."""
        return cls(root, stored_form(read_manifest(root)))

    def refs(self, shard: PlannedShard) -> Iterator[InputRef]:
        """The inputs of a shard in its order, those that became records with their labels."""
        folder = BuildFolder(self.root)
        path = str(folder.shard(shard))
        try:
            rows = read_seen(folder.seen(shard)).to_pylist()
            sizes = read_index(folder.index(shard))[:, 1].tolist()
            labels = _read_labels(folder.facts(shard), records=len(sizes))
        except (OSError, ValueError) as error:
            raise ShardsmithError(f"{path}: {error}; mend it with `python -m pipelines repair`") from error
        made = iter(zip(sizes, labels, strict=True))
        for number, row in enumerate(rows):
            size, names = (0, ()) if row[REASON] else next(made)
            location = Location(path, size, number, coding=RECORD, form=self.form, content=row[DIGEST])
            yield carried_ref(row, location, shard)._replace(labels=names)

    def uprooted_refs(self, shard: PlannedShard) -> Iterator[InputRef]:
        """The same for a shard that ends."""
        for ref in self.refs(shard):
            assert ref.before is not None, "a carried input has one"
            yield ref._replace(before=ref.before._replace(uprooted=True))


def stored_form(manifest: Manifest) -> str:
    """The form of what the records hold: "" for pictures."""
    rows = [feature for feature in manifest.features if feature.name == "features"]
    return f"<f4:{rows[0].length}" if rows else ""


def carried_ref(row: dict[str, Any], location: Location, shard: PlannedShard) -> InputRef:
    """The ref of an input that has a row in the table of what was seen."""
    reason = row[REASON]
    return InputRef(
        to_text(row[KEY]),
        location,
        split=shard.split if row["given"] else "",
        group=to_text(row["group"]),
        fault=Fault(reason, "it was one before") if reason in DUPLICATES else None,
        before=Before(
            shard.split,
            shard.index,
            row[IDENTITY],
            reason=reason,
            content=row["content"],
            look=row["look"],
            source=row[SOURCE],
        ),
        content=row["content"],
        look=row["look"],
        unit=to_text(row["unit"]),
        dealt=shard.split,
    )


def _read_labels(path: Path, *, records: int) -> list[tuple[str, ...]]:
    with pa.ipc.open_file(str(path)) as reader:
        if LABEL_NAME not in reader.schema.names:
            return [()] * records
        found = reader.read_all()[LABEL_NAME].to_pylist()
    return [tuple(name.decode() for name in names) for names in found]


@dataclass(eq=False)
class CarryInputs(beam.PTransform):
    """Carries all inputs of some shards over."""

    carrier: Carrier
    shards: tuple[PlannedShard, ...]

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[InputRef]:
        """Root -> refs."""
        return (
            root
            | "Shards" >> beam.Create(self.shards)  # PlannedShard
            | "Spread" >> beam.Reshuffle()  # PlannedShard
            | "Carry" >> beam.FlatMap(self.carrier.uprooted_refs).with_output_types(InputRef)  # InputRef
        )
