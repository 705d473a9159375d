"""A damaged dataset while it is repaired: what was found, what has been mended and from what, and what is lost."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipelines.mending.remains import Job, read_rejects
from pipelines.planning.splits import order_hash
from pipelines.values import PlannedShard, Receipt
from pipelines.workspace.layout import BuildFolder, load_receipt
from pipelines.writing.seen import KEY, REASON, read_seen, to_text
from shards.files import hash_file
from shards.local import local_files, read_local
from shards.manifest import Manifest, ShardEntry


@dataclass(frozen=True)
class Damaged:
    """A dataset, with what is wrong in it: `found` by the names of its files, as are `mended` and `lost`."""

    folder: BuildFolder
    manifest: Manifest
    found: dict[str, str] = field(default_factory=dict)
    mended: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        """The files of which it is not decided yet what becomes of them."""
        return [name for name in self.found if name not in self.mended and name not in self.lost]

    def is_good(self, name: str) -> bool:
        """Whether a file is what it was."""
        return name not in self.found or name in self.mended

    @cached_property
    def checksums(self) -> dict[str, str]:
        """The sha256 of every file that the manifest lists."""
        shards = self.shards.values()
        others = {entry.path: entry.sha256 for entry in (*self.manifest.files, *self.manifest.retired)}
        return others | {entry.path: entry.sha256 for entry in shards} | {e.index: e.index_sha256 for e in shards}

    @cached_property
    def shards(self) -> dict[PlannedShard, ShardEntry]:
        """The entries of the shards."""
        entries = [(split.name, entry) for split in self.manifest.splits for entry in split.shards]
        return {PlannedShard(-1, split, _index_of(entry)): entry for split, entry in entries}

    @cached_property
    def owners(self) -> dict[str, PlannedShard]:
        """The shard that a file belongs to, by its name."""
        return {self.name_of(path): shard for shard in self.shards for path in self.folder.shard_files(shard)}

    def name_of(self, path: Path) -> str:
        """The name of a file of the dataset."""
        return path.relative_to(self.folder.root).as_posix()

    def receipt(self, shard: PlannedShard) -> Receipt | None:
        """What a shard says of itself, if that is to be had."""
        path = self.folder.receipt(shard)
        return load_receipt(path) if self.is_good(self.name_of(path)) else None

    def fits(self, name: str, content: bytes | Path) -> bool:
        """Whether something is what the file of this name was."""
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest() == self.checksums.get(name)
        return content.is_file() and hash_file(content) == self.checksums.get(name)


def _index_of(entry: ShardEntry) -> int:
    return int(entry.path.removesuffix(".tfrecord").rpartition("-")[2])


def find_unknown_inputs(damaged: Damaged) -> dict[str, str]:
    """Files of `state/seen` that are no good, where no list of their checksums can tell."""
    root = damaged.folder.root
    try:
        read_local(root)
        return {}  # then `verify` has compared them
    except (OSError, ValueError):
        if not any(local_files(root)):
            return {}  # a copy of a dataset, which needs none
    names = {damaged.name_of(damaged.folder.seen(shard)): shard for shard in damaged.shards}
    return {name: problem for name, shard in names.items() if (problem := _check_seen(damaged, shard))}


def _check_seen(damaged: Damaged, shard: PlannedShard) -> str:
    """What speaks against the rows of a shard's inputs; "" if they can be its own."""
    path = damaged.folder.seen(shard)
    if not path.exists():
        return "the file is missing"
    try:
        table = read_seen(path, (KEY, REASON))
        hashes = [order_hash(to_text(key)) for key in table[KEY].to_pylist()]
        records = sum(not reason for reason in table[REASON].to_pylist())
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"
    receipt = damaged.receipt(shard)
    is_right = records == damaged.shards[shard].records and hashes == sorted(hashes)
    return "" if is_right and (not receipt or receipt.listed == len(hashes)) else "does not fit to its shard"


def list_jobs(damaged: Damaged) -> list[Job]:
    """The shards that must be made again, for what is damaged of them or can only be had with them."""
    wanted: defaultdict[PlannedShard, set[str]] = defaultdict(set)
    for name in damaged.left:
        if name in damaged.owners:
            wanted[damaged.owners[name]].add(name)
    kept = [name for name in damaged.left if name.startswith("rejected/quarantine/")]
    for name, shard in _find_rejecters(damaged, kept):
        wanted[shard].add(name)
    jobs: list[Job] = []
    for shard in sorted(wanted, key=lambda each: (each.split, each.index)):
        numbered = PlannedShard(len(jobs), shard.split, shard.index)
        job = Job(damaged.folder.root, numbered, damaged.shards[shard], frozenset(wanted[shard]))
        jobs.append(_find_range(job, damaged.receipt(shard)))
    return jobs


def _find_rejecters(damaged: Damaged, names: Iterable[str]) -> Iterator[tuple[str, PlannedShard]]:
    """The shards that kept some bytes because they rejected them."""
    sought = {Path(name).name: name for name in names}
    for shard in damaged.shards if sought else ():
        path = damaged.folder.rejects(shard)
        if damaged.is_good(damaged.name_of(path)):
            kept = {each["sha256"] for each in read_rejects(path)}
            yield from ((name, shard) for sha256, name in sought.items() if sha256 in kept)


def _find_range(job: Job, receipt: Receipt | None) -> Job:
    """The job with the range of its inputs, if nothing else tells which they are."""
    told = job.is_good(job.folder.shard(job.shard)) and job.name_of(job.folder.rejects(job.shard)) not in job.damaged
    if job.knows_its_inputs or told or receipt is None:
        return job
    return Job(job.root, job.shard, job.entry, job.damaged, receipt.hashes)


def list_others(damaged: Damaged, jobs: list[Job]) -> list[PlannedShard]:
    """The shards that are not made again."""
    made_again = {(job.shard.split, job.shard.index) for job in jobs}
    return [shard for shard in damaged.shards if (shard.split, shard.index) not in made_again]


def list_neighbours(damaged: Damaged, jobs: list[Job]) -> list[PlannedShard]:
    """Those of them whose inputs could be taken for the inputs of a shard of which these are not known."""
    unsure = [job for job in jobs if job.range]
    return [
        shard
        for shard in list_others(damaged, jobs)
        if unsure
        and (receipt := damaged.receipt(shard))
        and any(_overlap(shard, receipt.hashes, job) for job in unsure)
    ]


def _overlap(shard: PlannedShard, hashes: tuple[int, int], job: Job) -> bool:
    return bool(
        job.range and shard.split == job.shard.split and hashes[0] <= job.range[1] and job.range[0] <= hashes[1]
    )
