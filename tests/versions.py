"""Datasets whose versions are made by the very functions that the job is wired of, without Beam and without pictures.

So a test can afford many versions. What stands in: a maker of records that are a few bytes of text, and a publishing
that writes no manifest.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conftest import make_config

from pipelines.pictures.process import Made, Outcome, Refused, Task
from pipelines.pipeline import key_by_shard
from pipelines.planning.listing import Listing
from pipelines.planning.plan import Past, Plan, make_plan
from pipelines.planning.splits import deal
from pipelines.update import adopt, settle
from pipelines.values import InputRef, Location
from pipelines.versions.carry import Carrier
from pipelines.versions.match import Known, match_inputs
from pipelines.workspace.layout import BuildFolder, load_receipts, save_plan
from pipelines.writing.donor import Donor, rewrite_shard
from shards.records import read_records


class Thing(NamedTuple):
    """What a source says of the inputs of one key; `copies` are the files that have it, the first of which counts."""

    label: str = "a"
    modified: int = 1
    split: str = ""
    group: str = ""
    copies: tuple[str, ...] = ("",)
    broken: bool = False


State = Mapping[str, Thing]


def refs_of(state: State) -> list[InputRef]:
    """The inputs of a state, as a source lists them."""
    return [
        InputRef(key, Location(f"raw/{key}{copy}", 0 if thing.broken else 9, modified=thing.modified), (thing.label,))
        ._replace(split=thing.split, group=thing.group)
        for key, thing in state.items()
        for copy in thing.copies
    ]  # fmt: skip


def text_of(ref: InputRef, label_ids: tuple[int, ...]) -> str:
    """What the maker writes for an input."""
    return f"{ref.key} {label_ids[0]} {ref.location.path} {ref.location.modified}"


class Maker:
    """Makes records of text, and remembers of which inputs; those without bytes are refused."""

    count = 1

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def submit(self, tasks: list[Task], /) -> "Future[list[Outcome]]":
        self.asked |= {task.ref.key for task in tasks if not task.ref.fault}
        future: Future[list[Outcome]] = Future()
        future.set_result([self.make(task) for task in tasks])
        return future

    def make(self, task: Task) -> Outcome:
        if task.ref.fault or not task.ref.location.size:
            return Refused(*(task.ref.fault or ("empty_file", "no bytes")))
        facts = ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [label.encode() for label in task.ref.labels])
        return Made(text_of(task.ref, task.label_ids).encode(), facts, format="png", sides=(8, 8))


@dataclass
class Versions:
    """A dataset that is taken from version to version."""

    root: Path
    labels: tuple[str, ...] = ()
    used: dict[str, int] | None = None  # the next index of each split

    def __post_init__(self) -> None:
        sections = {"splits": {"fractions": {"train": 0.6, "test": 0.4}}, "shards": {"target_mb": 0.0012}}
        self.config = make_config("raw", self.root, **sections)
        self.folder = BuildFolder(self.root)
        self.folder.prepare(anew=False)

    def match(self, state: State, *, keep_missing: bool = False, retry: bool = False) -> list[InputRef]:
        """The inputs of a state with their past, and a split."""
        known, carry = Known.of(self.root), Carrier(self.root).refs if keep_missing else None
        found: list[InputRef] = []
        for number in range(known.buckets):
            refs = [ref for ref in refs_of(state) if known.bucket_of(ref.key) == number]
            found += match_inputs(refs, known.inputs(number), self.config, retry=retry, carry=carry)
        return [deal(ref, self.config.splits) for ref in found]

    def update(self, state: State, *, keep_missing: bool = False, retry: bool = False) -> tuple[Plan, Maker]:
        """Takes up a state of the sources; returns what was planned, and who made the new records."""
        return self._make(self.match(state, keep_missing=keep_missing, retry=retry), Past())

    def compact(self) -> tuple[Plan, Maker]:
        """Merges shards."""
        shards: defaultdict[str, int] = defaultdict(int)
        refs: list[InputRef] = []
        for receipt in load_receipts(self.folder):
            shards[receipt.split] += 1
            refs += Carrier(self.root).uprooted_refs(receipt.shard)
        return self._make(refs, Past(shards=shards))

    def _make(self, refs: Iterable[InputRef], past: Past) -> tuple[Plan, Maker]:
        listing, aside, maker = Listing(), self.folder.next, Maker()
        staged = self.config.model_copy(update={"output": str(aside.root)})
        for ref in (found := list(refs)):
            listing.add(ref, staged)
        plan = make_plan(listing, staged, past=Past(self.labels, self.used or {}, shards=past.shards))
        aside.prepare(anew=True)
        save_plan(plan, aside.plan)
        groups: defaultdict[int, list[InputRef]] = defaultdict(list)
        for ref in found:
            for number, placed in key_by_shard(ref, plan):
                groups[number].append(placed)
        assert sorted(groups) == list(range(len(plan.shards)))
        for number, group in groups.items():
            rewrite_shard(
                plan.shards[number], group, begun=Donor(aside.root), past=Donor(self.root), plan=plan, config=staged,
                decoders=maker, watch=lambda *_: None,
            )  # fmt: skip
        self._publish(plan)
        return plan, maker

    def _publish(self, plan: Plan) -> None:
        self.labels = plan.labels
        for shard in plan.shards:
            self.used = (self.used or {}) | {shard.split: max((self.used or {}).get(shard.split, 0), shard.index + 1)}
        settled = settle(plan, self.folder)
        adopt(settled, self.folder)
        staying = [receipt.shard for receipt in load_receipts(self.folder.next)]
        keep = {path.relative_to(self.root).as_posix() for shard in staying for path in self.folder.shard_files(shard)}
        self.folder.publish_next(keep=keep)

    @property
    def records(self) -> dict[str, list[str]]:
        """The records of every split, in reading order."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for receipt in load_receipts(self.folder):
            with self.folder.shard(receipt.shard).open("rb") as stream:
                found[receipt.split] += [record.decode() for _, record in read_records(stream)]
        return found

    @property
    def splits(self) -> dict[str, str]:
        """The split of every record, by its text."""
        return {record: split for split, records in self.records.items() for record in records}

    @property
    def rejects(self) -> list[str]:
        """The lines of all rejects."""
        return sorted(
            line for path in (self.root / "rejected").glob("*.jsonl") for line in path.read_text().splitlines()
        )

    @property
    def shard_files(self) -> dict[str, tuple[int, int]]:
        """Every shard by its name, with what shows that it is the very same file."""
        paths = self.root.glob("*/*.tfrecord")
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
