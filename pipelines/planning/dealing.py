"""The Beam side of splits: who belongs together meets, and if asked for every class is shared out by itself."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.pvalue import AsDict, AsSingleton

import pipelines.inputs.coders  # noqa: F401  (registers how refs travel)
from pipelines.config import BuildConfig, SplitsConfig
from pipelines.planning.splits import deal, deal_unit, is_tied, unit_of
from pipelines.planning.stratify import (
    Cut,
    Starts,
    Stratum,
    Unit,
    allot,
    describe_unit,
    find_cuts,
    find_starts,
    is_counted,
    is_cut,
    side_of,
)
from pipelines.values import InputRef

Cuts = Mapping[str, tuple[Cut, ...]]  # by stratum


@dataclass(eq=False)
class DealSplits(beam.PTransform):
    """Decides the split of every ref; what the dataset has stays where it is, and a unit is never cut."""

    config: BuildConfig

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[InputRef]:
        """Refs -> the same refs, dealt."""
        splits = self.config.splits
        alone = refs | "Alone" >> beam.Filter(lambda ref: not is_tied(ref)).with_output_types(InputRef)
        units = refs | "Units" >> GroupUnits()  # [InputRef]
        if not splits.stratify:
            dealt = alone | "Deal" >> beam.Map(deal, splits).with_output_types(InputRef)
            together = units | "DealUnits" >> beam.FlatMap(deal_unit, splits).with_output_types(InputRef)
            return (dealt, together) | "All" >> beam.Flatten()
        several = self.config.labels.kind == "multi"
        counts = AsDict(refs | "CountLabels" >> CountLabels()) if several else {}
        singles = alone | "EachAlone" >> beam.Map(lambda ref: [ref]).with_output_types(Iterable[InputRef])
        all_units = (singles, units) | "AllUnits" >> beam.Flatten()
        starts = AsDict(all_units | "ShareOut" >> ShareOut(splits, counts))
        return all_units | "Deal" >> beam.FlatMap(deal_stratified, splits, counts, starts).with_output_types(InputRef)


@dataclass(eq=False)
class GroupUnits(beam.PTransform):
    """Brings together the refs that belong to a group, or to duplicates of each other."""

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[Iterable[InputRef]]:
        """Refs -> the refs of each unit; those that stand alone are left out."""
        return (
            refs
            | "Tied" >> beam.Filter(is_tied).with_output_types(InputRef)
            | "KeyByUnit" >> beam.Map(lambda ref: (unit_of(ref), ref)).with_output_types(tuple[str, InputRef])
            | "GroupByUnit" >> beam.GroupByKey()  # (unit, [InputRef])
            | "Refs" >> beam.Values()  # [InputRef]
        )


@dataclass(eq=False)
class CountLabels(beam.PTransform):
    """Counts the inputs of every label."""

    def expand(self, refs: beam.PCollection[InputRef]) -> beam.PCollection[tuple[str, int]]:
        """Refs -> (label, inputs)."""
        return (
            refs
            | "Counted" >> beam.Filter(is_counted)
            | "Labels" >> beam.FlatMap(lambda ref: ref.labels).with_output_types(str)
            | "PerLabel" >> beam.combiners.Count.PerElement()
        )


@dataclass(eq=False)
class ShareOut(beam.PTransform):
    """Finds where each split begins in every stratum."""

    splits: SplitsConfig
    counts: AsDict | dict[str, int]

    def expand(self, units: beam.PCollection[Iterable[InputRef]]) -> beam.PCollection[tuple[str, Starts]]:
        """The refs of each unit -> (stratum, starts)."""
        keyed = units | "ByStratum" >> beam.Map(key_by_stratum, self.splits, self.counts).with_output_types(
            tuple[str, Unit]
        )
        cuts = (
            keyed
            | "PerStratum" >> beam.CombinePerKey(CountStratum())  # (stratum, Stratum)
            | "Together" >> beam.CombineGlobally(beam.combiners.ToDictCombineFn()).without_defaults()
            | "Cut" >> beam.Map(cut_strata, self.splits)  # {stratum: cuts}
        )
        inside = keyed | "Inside" >> beam.FlatMap(find_inside, AsSingleton(cuts, default_value={}))
        outside = cuts | "EachStratum" >> beam.FlatMap(lambda found: ((name, ()) for name in found))
        return (
            (inside, outside)
            | "Positions" >> beam.Flatten()
            | "GroupPositions" >> beam.GroupByKey()  # (stratum, [(position, inputs) or ()])
            | "Starts" >> beam.Map(start_splits, AsSingleton(cuts, default_value={}))  # (stratum, Starts)
        )


class CountStratum(beam.CombineFn):
    """Adds units up to a Stratum, whose size does not depend on their number."""

    def create_accumulator(self) -> Stratum:
        """Nothing counted."""
        return Stratum()

    def add_input(self, stratum: Stratum, unit: Unit) -> Stratum:
        """Counts one unit."""
        return stratum.add(unit)

    def merge_accumulators(self, strata: Iterable[Stratum]) -> Stratum:
        """Adds parts up."""
        total = Stratum()
        for stratum in strata:
            total.merge(stratum)
        return total

    def extract_output(self, stratum: Stratum) -> Stratum:
        """The stratum itself."""
        return stratum


def key_by_stratum(refs: Iterable[InputRef], splits: SplitsConfig, counts: Mapping[str, int]) -> tuple[str, Unit]:
    """A unit by its stratum."""
    unit = describe_unit(refs, splits, counts)
    return unit.stratum, unit


def cut_strata(strata: Mapping[str, Stratum], splits: SplitsConfig) -> dict[str, tuple[Cut, ...]]:
    """The cuts of all strata that have something to share out."""
    allotted = allot(strata, splits.fractions)
    return {name: find_cuts(strata[name], allotted[name]) for name in sorted(strata) if sum(allotted[name])}


def find_inside(keyed: tuple[str, Unit], cuts: Cuts) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A unit that lies in a bin which is cut: its position and weight, by its stratum."""
    stratum, unit = keyed
    if is_cut(unit, cuts.get(stratum, ())):
        yield stratum, (unit.position, unit.free)


def start_splits(element: tuple[str, Iterable[tuple[int, ...]]], cuts: Cuts) -> tuple[str, Starts]:
    """Where the splits begin in a stratum; units that lie in no cut bin are not needed."""
    stratum, found = element
    return stratum, find_starts(cuts[stratum], ((each[0], each[1]) for each in found if each))


def deal_stratified(
    refs: Iterable[InputRef], splits: SplitsConfig, counts: Mapping[str, int], starts: Mapping[str, Starts]
) -> Iterator[InputRef]:
    """The refs of one unit with one split."""
    return deal_unit(refs, splits, side_of(describe_unit(refs, splits, counts), starts, splits))
