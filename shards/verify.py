"""Says what is damaged in a dataset: every file, checksum, count and index line, against the manifest.

There are three levels. `fast` reads the manifest, the indexes and the size of every file; `full` reads every byte;
`decode` decodes every picture as well.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from shards.crew import work_on_all
from shards.damage import Problem, Report, Tick, check_file, check_shard, check_shard_fast, unreadable
from shards.local import LOCAL, SEEN, check_local
from shards.manifest import MANIFEST, MANIFEST_COPY, SPARE, FileEntry, Manifest, ShardEntry, SplitEntry, read_manifest
from shards.rules import Rules

__all__ = ["Level", "Problem", "amount_of_work", "verify"]

Level = Literal["fast", "full", "decode"]

_WORK_FOLDER = ".build"  # of a build that is under way: whatever lies there is no part of the dataset


def verify(
    directory: Path, *, level: Level = "full", processes: int = 1, tick: Tick = lambda count: None
) -> list[Problem]:
    """Every problem of the dataset; an empty list means that each file is what the build wrote, and holds together.

    `processes` files are checked at a time; `tick` is told how much was done since its last call, in the unit of
    `amount_of_work`.
    """
    manifest = read_manifest(directory)
    check = _Check(directory, level, Rules(manifest.features, manifest.labels, decode=level == "decode"))
    reports = iter(work_on_all(check, _listed(manifest), processes=processes, tick=tick))
    problems = [*_check_text(directory), *_check_copy(directory, manifest), *_check_counts(manifest)]
    for split in manifest.splits:
        problems += _check_split(split, list(islice(reports, len(split.shards))), level)
    for report in reports:
        problems += report.problems
    problems += check_local(directory, fast=level == "fast")
    return [*problems, *_check_strangers(directory, manifest)]


def amount_of_work(manifest: Manifest, level: Level) -> int:
    """How much there is to check: bytes, or files at level `fast`."""
    files = _listed(manifest)
    return len(files) if level == "fast" else sum(entry.bytes for entry in files)


def _listed(manifest: Manifest) -> list[FileEntry]:
    """Everything that the manifest lists; shards first, each of which stands for its index too."""
    return [*chain.from_iterable(split.shards for split in manifest.splits), *manifest.files, *manifest.retired]


@dataclass(frozen=True)
class _Check:
    """Checks one file of a dataset; can be sent to another process."""

    directory: Path
    level: Level
    rules: Rules

    def __call__(self, entry: FileEntry, tick: Tick) -> Report:
        """What is wrong with the file."""
        if self.level == "fast":
            tick(1)
            if isinstance(entry, ShardEntry):
                return check_shard_fast(self.directory, entry)
            return Report(tuple(check_file(self.directory, entry, fast=True)))
        if isinstance(entry, ShardEntry):
            return check_shard(self.directory, entry, self.rules, tick)
        return Report(tuple(check_file(self.directory, entry, fast=False, tick=tick)))


def _check_text(directory: Path) -> Iterator[Problem]:
    """Its own checksum covers what the manifest says; this covers how, for 1e-05 is 1E-05 with one bit flipped."""
    content = (directory / MANIFEST).read_bytes()
    if content != (json.dumps(json.loads(content), indent=1, ensure_ascii=False) + "\n").encode():
        yield Problem(MANIFEST, "is not spelled as a build writes it, though what it says is right: damaged or edited?")


def _check_copy(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    """There is a second manifest, from which the first can be restored."""
    if all(entry.path != SPARE for entry in manifest.files):
        return
    try:
        if (directory / MANIFEST_COPY).read_bytes() != manifest.to_json().encode():
            yield Problem(MANIFEST_COPY, f"is not the same as {MANIFEST}")
    except OSError as error:
        yield unreadable(MANIFEST_COPY, error, what="copy of the manifest")


def _check_counts(manifest: Manifest) -> Iterator[Problem]:
    for problem in manifest.counts.problems():
        yield Problem(MANIFEST, f"the accounting does not hold: {problem}")
    written = sum(split.records for split in manifest.splits)
    if written != manifest.counts.written:
        yield Problem(MANIFEST, f"counts.written is {manifest.counts.written}, the splits have {written} records")
    for split in manifest.splits:
        records, size = sum(shard.records for shard in split.shards), sum(shard.bytes for shard in split.shards)
        if (split.records, split.bytes) != (records, size):
            said = f"{split.records} records in {split.bytes} bytes"
            yield Problem(MANIFEST, f"split {split.name!r} has {said}, its shards have {records} in {size}")
        accounted = sum(account.written for account in manifest.counts.sources if account.split == split.name)
        if accounted != split.records:
            yield Problem(MANIFEST, f"split {split.name!r} has {split.records} records, its sources have {accounted}")


def _check_split(split: SplitEntry, reports: Sequence[Report], level: Level) -> Iterator[Problem]:
    """The problems of its shards; if there are none, what its records are called is held against the manifest."""
    yield from chain.from_iterable(report.problems for report in reports)
    if level != "fast" and not any(report.problems for report in reports):
        labels: Counter[str] = Counter()
        for report in reports:
            labels.update(report.labels)
        yield from _check_labels(split, labels)


def _check_labels(split: SplitEntry, labels: Counter[str]) -> Iterator[Problem]:
    wrong = [name for name in sorted({*split.labels, *labels}) if labels[name] != split.labels.get(name, 0)]
    if wrong:
        said, found = split.labels.get(wrong[0], 0), labels[wrong[0]]
        more = f", and {len(wrong) - 1:,} other labels differ" if len(wrong) > 1 else ""
        yield Problem(
            MANIFEST, f"split {split.name!r} lists {said} examples of {wrong[0]!r}, its records have {found}{more}"
        )


def _check_strangers(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    """What belongs to no dataset: a stranger among the shards would be read by whoever reads by a glob."""
    known = {MANIFEST, MANIFEST_COPY, LOCAL, *(entry.path for entry in _listed(manifest))}
    known |= {shard.index for split in manifest.splits for shard in split.shards}
    for name, problem in sorted(_walk(directory)):
        if name not in known and not name.startswith(f"{SEEN}/"):
            yield Problem(name, problem or "is not in the manifest")


def _walk(directory: Path) -> Iterator[tuple[str, str]]:
    """Every file, and every folder that cannot be read, with why not."""
    errors: list[OSError] = []
    for folder, folders, files in os.walk(directory, onerror=errors.append):
        here = Path(folder).relative_to(directory)
        links = [name for name in folders if (directory / here / name).is_symlink()]
        folders[:] = [name for name in folders if (here / name).as_posix() != _WORK_FOLDER]
        yield from (((here / name).as_posix(), "") for name in [*files, *links])
    for error in errors:
        yield Path(error.filename).relative_to(directory).as_posix(), f"cannot be read: {error.strerror}"
