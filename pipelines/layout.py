"""Where a build puts things.

The dataset's own files; the state beside them from which later runs go on (recipe, plan, receipts, facts); and the
working files under `.build`, of which a finished build leaves no trace.

A run that changes a dataset makes a whole new one in `.build/next` and then moves it into place. The move can be cut
off at any point: from the moment it is announced, whoever comes next finishes it first.
"""

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipelines.plan import Plan, SplitPlan
from pipelines.values import Account, Content, PlannedShard, Receipt
from shards.errors import UsageError
from shards.files import write_atomically
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
    def ready(self) -> Path:
        """The announcement that the next dataset is whole, with the names of what it consists of."""
        return self.work / "ready.json"

    @property
    def worker_log(self) -> Path:
        """What workers and native libraries say while the job runs."""
        return self.work / "workers.log"

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

    def progress(self, shard: PlannedShard) -> Path:
        """How far the shard's worker is."""
        return self.work / "progress" / shard.slug

    def listing(self, partition: int) -> Path:
        """How many inputs of a partition have been listed."""
        return self.work / "listing" / str(partition)

    def taken(self, shard: PlannedShard) -> Path:
        """How many records a rewritten shard took over from the dataset before."""
        return self.work / "taken" / shard.slug

    def prepare(self, *, overwrite: bool) -> None:
        """Makes an empty output directory; only an unfinished build is cleared without being told to overwrite."""
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"output {self.root} is a file; choose a directory")
        occupied = self.root.is_dir() and any(self.root.iterdir())
        if occupied and self.manifest.exists() and not overwrite:
            raise UsageError(
                f"output {self.root} already holds a finished dataset; choose another --output, or pass --overwrite"
            )
        if occupied and not (self.manifest.exists() or self.work.is_dir()):
            raise UsageError(f"output {self.root} is not empty and not a dataset; choose another --output")
        try:
            self._make_empty()
        except OSError as error:
            raise UsageError(f"output {self.root} cannot be written: {error.strerror}") from error

    def _make_empty(self) -> None:
        # The manifest goes first: from here on nothing looks like a complete dataset.
        self.manifest.unlink(missing_ok=True)
        if self.root.is_dir():
            for path in self.root.iterdir():
                _remove(path)
        for folder in (self.state / "receipts", self.state / "facts", self.seen_here, self.root / "rejected"):
            folder.mkdir(parents=True)
        for name in ("progress", "listing", "taken"):
            (self.work / name).mkdir(parents=True)

    def publish_next(self) -> None:
        """Replaces this dataset by the next one; until the last step nothing looks complete that is not."""
        names = sorted(path.name for path in self.next.root.iterdir() if path != self.next.work)
        write_atomically(self.ready, json.dumps(names).encode())
        self.finish_publishing()

    def finish_publishing(self) -> None:
        """Does what is left to do of an announced replacement; nothing if none was announced."""
        if not self.ready.exists():
            return
        names = json.loads(self.ready.read_text())
        # A manifest that is still among the next dataset's files is not in place yet: the one in place is the old one.
        if self.next.manifest.exists() or MANIFEST not in names:
            self.manifest.unlink(missing_ok=True)
        for path in self.root.iterdir():
            if path != self.work and path.name not in names:
                _remove(path)
        for name in sorted(names, key=lambda name: name == MANIFEST):
            if (self.next.root / name).exists():
                _remove(self.root / name)
                (self.next.root / name).rename(self.root / name)
        shutil.rmtree(self.next.root, ignore_errors=True)
        self.ready.unlink()
        if MANIFEST in names:
            shutil.rmtree(self.work)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def save_plan(plan: Plan, path: Path) -> None:
    """Stores the plan, and makes the folders that it names."""
    for split in plan.splits:
        (path.parent.parent / split.name).mkdir(exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(plan)).encode())


def load_plan(path: Path) -> Plan:
    """Reads a stored plan; a job that found no inputs stores none."""
    if not path.exists():
        return Plan(labels=(), label_counts={}, splits=())
    values = json.loads(path.read_text(encoding="utf-8"))
    splits = tuple(SplitPlan(**split | {"starts": tuple(split["starts"])}) for split in values["splits"])
    content = Content(**values["content"])
    return Plan(**values | {"labels": tuple(values["labels"]), "splits": splits, "content": content})


def save_receipt(receipt: Receipt, path: Path) -> None:
    """Stores a receipt; the shard counts as written from here on."""
    write_atomically(path, json.dumps(dataclasses.asdict(receipt)).encode())


def load_receipt(path: Path) -> Receipt:
    """Reads a stored receipt."""
    values = json.loads(path.read_text(encoding="utf-8"))
    sources = {name: Account(**account) for name, account in values["sources"].items()}
    sides = {name: tuple(values[name]) for name in ("smallest", "largest")}
    return Receipt(**values | sides | {"sources": sources})
