"""Where a build puts things.

The dataset's own files; the state beside them from which later runs go on (recipe, plan, receipts, facts); and the
working files under `.build`, of which a finished build leaves no trace.

A run that changes a dataset makes the next version in `.build/next` and then moves it into place. The move can be cut
off at any point: from the moment it is announced, whoever comes next finishes it first.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from pipelines.planning.plan import Plan
from pipelines.values import PlannedShard, Receipt
from shards.files import is_temporary, open_atomically, write_atomically
from shards.manifest import MANIFEST


@dataclass(frozen=True)
class BuildFolder:
    """The paths of one output directory."""

    root: Path

    @property
    def manifest(self) -> Path:
        """Written last; its existence means that the dataset is complete."""
        return self.root / MANIFEST

    @property
    def work(self) -> Path:
        """Progress, logs and spooled inputs of a build that is under way."""
        return self.root / ".build"

    @property
    def state(self) -> Path:
        """What later runs need to know of how the dataset was made."""
        return self.root / "state"

    @property
    def spool(self) -> Path:
        """Inputs that cannot be read in place, copied to where they can."""
        return self.work / "spool"

    @property
    def plan(self) -> Path:
        """The shard plan."""
        return self.state / "plan.json"

    @property
    def begun_plan(self) -> Path:
        """The plan of the run that this one takes further, while inputs are listed again."""
        return self.work / "begun.json"

    @property
    def sources(self) -> Path:
        """What the sources were when they were listed, as one number."""
        return self.seen_here / "sources.json"

    @property
    def recipe(self) -> Path:
        """The settings that shaped the bytes."""
        return self.state / "recipe.json"

    @property
    def seen_here(self) -> Path:
        """What is true of the inputs on this machine only, and so is no part of what the manifest lists."""
        return self.state / "seen"

    @property
    def next(self) -> "BuildFolder":
        """Where the dataset that will replace this one is made."""
        return BuildFolder(self.work / "next")

    @property
    def is_next(self) -> bool:
        """Whether this is where the next version of another folder is made."""
        return self.root == BuildFolder(self.root.parent.parent).work / "next"

    @property
    def ready(self) -> Path:
        """The announcement that the next dataset is whole, with the names of what it consists of."""
        return self.work / "ready.json"

    @property
    def holder(self) -> Path:
        """Who works here now; see `lock`."""
        return self.work / "holder.json"

    @property
    def worker_log(self) -> Path:
        """What workers and native libraries say while the job runs."""
        return self.work / "workers.log"

    @property
    def duplicates(self) -> Path:
        """The clusters of duplicates, a line for each, if they were looked for."""
        return self.root / "duplicates.jsonl"

    def shard(self, shard: PlannedShard) -> Path:
        """The TFRecord file."""
        return self.root / f"{shard.name}.tfrecord"

    def index(self, shard: PlannedShard) -> Path:
        """The index beside it."""
        return self.root / f"{shard.name}.idx"

    def rejects(self, shard: PlannedShard) -> Path:
        """The inputs that this shard did not take."""
        return self.root / "rejected" / f"{shard.slug}.jsonl"

    def quarantine(self, sha256: str) -> Path:
        """The bytes of a rejected input, by their hash."""
        return self.root / "rejected" / "quarantine" / sha256[:2] / sha256

    def receipt(self, shard: PlannedShard) -> Path:
        """What the finished shard says of itself."""
        return self.state / "receipts" / f"{shard.slug}.json"

    def facts(self, shard: PlannedShard) -> Path:
        """One row per example, for tf.Transform."""
        return self.state / "facts" / f"{shard.slug}.arrow"

    def seen(self, shard: PlannedShard) -> Path:
        """By what its inputs can be known again."""
        return self.seen_here / f"{shard.slug}.arrow"

    def shard_files(self, shard: PlannedShard) -> list[Path]:
        """Everything that a shard consists of; the receipt, without which it is none, comes first."""
        places = (self.receipt, self.shard, self.index, self.facts, self.seen, self.rejects)
        return [place(shard) for place in places]

    def progress(self, shard: PlannedShard) -> Path:
        """How far the shard's worker is."""
        return self.work / "progress" / shard.slug

    def listing(self, partition: int) -> Path:
        """How many inputs of a partition have been listed."""
        return self.work / "listing" / str(partition)

    def looking(self, worker: str) -> Path:
        """How many inputs a worker has looked at in search of duplicates."""
        return self.work / "looking" / worker

    def taken(self, shard: PlannedShard) -> Path:
        """How many records a shard took over from an earlier run, and whether (1 or 0) it was whole there already."""
        return self.work / "taken" / shard.slug

    @property
    def again(self) -> Path:
        """The mark of a run that tries rejected inputs again; whoever goes on with it does so too."""
        return self.work / "again"

    def note_again(self, again: bool) -> None:
        """Leaves that mark."""
        if again:
            self.again.touch()

    @property
    def is_unfinished(self) -> bool:
        """Whether a build was begun here and not ended."""
        return not self.manifest.exists() and self.work.is_dir()

    def reopen(self) -> None:
        """Makes a complete dataset an unfinished one; nothing if it is none."""
        if self.manifest.exists():
            self.work.mkdir(exist_ok=True)
            self.manifest.unlink()

    def prepare(self, *, anew: bool) -> None:
        """Makes the directories of a build; `anew` clears what an earlier one left, else it is kept to go on from."""
        if anew:
            self._clear()
        for folder in (self.state / "receipts", self.state / "facts", self.seen_here, self.root / "rejected"):
            folder.mkdir(parents=True, exist_ok=True)
        for path in self.work.glob("tmp*"):
            _remove(path)  # where an ended run's analysis was at work
        for name in ("progress", "listing", "looking", "taken"):
            shutil.rmtree(self.work / name, ignore_errors=True)
            (self.work / name).mkdir(parents=True)
        if self.plan.exists():
            self.plan.replace(self.begun_plan)

    def _clear(self) -> None:
        # The manifest goes first: from here on nothing looks like a complete dataset. The mark of an unfinished build
        # is there before the rest goes, so that whoever comes after a cut knows whose remains these are.
        self.manifest.unlink(missing_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        for path in self.root.iterdir():
            if path != self.work:
                _remove(path)
        for path in self.work.iterdir():
            if path != self.holder:
                _remove(path)

    def files(self) -> set[str]:
        """Every file of the dataset, by its relative path; those of a build under way are not."""
        paths = (path for path in self.root.rglob("*") if not path.is_relative_to(self.work))
        files = (path for path in paths if path.is_file() and not is_temporary(path.name))
        return {path.relative_to(self.root).as_posix() for path in files}

    def publish_next(self, *, keep: Collection[str] = (), anew: bool = False) -> None:
        """Puts the next dataset in place of this one, whose readers are not disturbed: the files in `keep` stay.

        One that was built `anew` uses the names of the old one again.
        """
        names = self.next.files()
        ended = sorted(self.files() - names - set(keep))
        write_atomically(self.ready, json.dumps({"files": sorted(names), "ended": ended, "anew": anew}).encode())
        self.finish_publishing()

    def finish_publishing(self) -> None:
        """Does what is left to do of an announced replacement, or after a build; nothing if all has been done.

        The manifest is switched last, and only then goes what it no longer names. Shards are not replaced, since their
        names are never used twice; where they are, the old manifest goes first, so that nothing looks complete.
        """
        if not self.ready.exists():
            if self.manifest.exists() and self.work.exists() and not self.next.root.exists():
                shutil.rmtree(self.work)  # the remains of a build that was cut off behind its manifest
            return
        announced = json.loads(self.ready.read_text())
        if announced["anew"] and self.next.manifest.exists():
            self.manifest.unlink(missing_ok=True)
        for name in sorted(announced["files"], key=lambda name: name == MANIFEST):
            if (self.next.root / name).exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(self.next.root / name, self.root / name)
        for name in announced["ended"]:
            (self.root / name).unlink(missing_ok=True)
        shutil.rmtree(self.next.root, ignore_errors=True)
        self.ready.unlink()
        shutil.rmtree(self.work)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def save_plan(plan: Plan, path: Path) -> None:
    """Stores the plan, and makes the folders that it names."""
    for split in plan.splits:
        (path.parent.parent / split.name).mkdir(exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(plan)).encode())


def load_plan(path: Path) -> Plan:
    """Reads a stored plan; a job that found no inputs stores none."""
    if not path.exists():
        return Plan(labels=(), label_counts={}, splits=())
    return _PLAN.validate_json(path.read_bytes())


# pydantic builds the nested values from the fields' types.
_PLAN = TypeAdapter(Plan)


def save_receipt(receipt: Receipt, path: Path) -> None:
    """Stores a receipt; the shard counts as written from here on."""
    write_atomically(path, json.dumps(dataclasses.asdict(receipt)).encode())


def load_receipt(path: Path) -> Receipt:
    """Reads a stored receipt; raises OSError or ValueError if it cannot be read."""
    return _RECEIPT.validate_json(path.read_bytes())


_RECEIPT = TypeAdapter(Receipt)


def load_receipts(folder: BuildFolder) -> list[Receipt]:
    """All receipts of a dataset, by split and index."""
    receipts = [load_receipt(path) for path in (folder.state / "receipts").glob("*.json")]
    return sorted(receipts, key=lambda receipt: (receipt.split, receipt.index))


def sweep_temporaries(root: Path) -> None:
    """Removes the files of ended runs that never got their names."""
    for folder, _, names in os.walk(root):
        for name in filter(is_temporary, names):
            Path(folder, name).unlink(missing_ok=True)


def sweep_unplanned(plan: Plan, folder: BuildFolder) -> None:
    """Removes what interrupted runs with other plans have left of shards."""
    planned = {shard.slug for shard in plan.shards}
    for receipt in load_receipts(folder):
        if receipt.shard.slug not in planned:
            for path in folder.shard_files(receipt.shard):
                path.unlink(missing_ok=True)


def link_file(old: Path, new: Path) -> None:
    """Gives a file a second name, or copies it where that cannot be done."""
    new.unlink(missing_ok=True)  # an earlier attempt's
    try:
        os.link(old, new)
    except OSError:
        with old.open("rb") as source, open_atomically(new) as stream:
            shutil.copyfileobj(source, stream)
