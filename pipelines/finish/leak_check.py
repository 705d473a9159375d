"""Lists what leaks from one split to another, tells it, and fails a build that may not have any."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.config import BuildConfig
from pipelines.finish.leaks import EXACT, GROUP, Leak, Places, find_leaks
from pipelines.finish.near_leaks import NEAR, find_near_leaks
from pipelines.values import Receipt
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError
from shards.files import open_atomically
from shards.manifest import Leaks, Manifest

LEAKS = "leaks.jsonl"
_FIRST = 5


def check_leaks(
    receipts: Sequence[Receipt], splits: Sequence[str], config: BuildConfig, *, older: Path | None = None
) -> Leaks:
    """Finds and lists the leaks of a dataset; fails if there are some where none are allowed, or none can be.

    `older` is where the version before lies, whose shards may be part of this one.
    """
    folder = BuildFolder(Path(config.output))
    places = Places(folder, splits, [receipt.shard for receipt in receipts], older)
    path = folder.root / LEAKS
    path.unlink(missing_ok=True)  # an interrupted run's
    listed = _list_leaks(_find_all(places, config), path)
    if config.dedupe.find == "near":
        listed = listed.model_copy(update={"near": listed.near or 0})
    first = read_leaks(folder.root, limit=_FIRST)
    if listed.total and config.splits.fail_on_leak:
        raise ShardsmithError(_failure(listed, first, path))
    # What the dataset has never moves, and the source has the last word; else nothing can be parted that was known to
    # belong together. Exact copies are known for sure only where every input was looked at.
    impossible = listed.total if config.dedupe.find == "near" else listed.group
    if impossible and not older and not places.any_given():
        raise ShardsmithError(f"{_found(listed, first)}\n  this is a mistake of ours: please report it")
    return listed


def _find_all(places: Places, config: BuildConfig) -> Iterator[Leak]:
    yield from find_leaks(EXACT, places)
    if config.dedupe.find == "near":
        yield from find_near_leaks(places, places.folder.duplicates, config.dedupe.limit)
    yield from find_leaks(GROUP, places)


def _list_leaks(leaks: Iterator[Leak], path: Path) -> Leaks:
    """Writes a line for each leak and counts them; without any there is no file."""
    counts: Counter[str] = Counter()
    first = next(leaks, None)
    if first is None:
        return Leaks()
    with open_atomically(path) as stream:
        for leak in itertools.chain([first], leaks):
            counts.update({leak.kind: 1, "given": int(leak.given)})
            line = json.dumps(dataclasses.asdict(leak), ensure_ascii=False)
            stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
    near = counts[NEAR] or None
    return Leaks(exact=counts[EXACT.name], near=near, group=counts[GROUP.name], given=counts["given"])


def read_leaks(root: Path, *, limit: int) -> list[Leak]:
    """The first leaks of a dataset, in their order."""
    if not (root / LEAKS).exists():
        return []
    with (root / LEAKS).open(encoding="utf-8") as stream:
        values = [json.loads(line) for line, _ in zip(stream, range(limit), strict=False)]
    pairs = ("keys", "splits", "shards", "records")
    return [Leak(**(each | {name: tuple(each[name]) for name in pairs})) for each in values]


def _failure(leaks: Leaks, first: Sequence[Leak], path: Path) -> str:
    return (
        f"splits.fail_on_leak allows no leaks: {_found(leaks, first)}\n"
        f"  the full list is in {path}; remove one of each pair from the sources and give the same command again, "
        "or run it with --set splits.fail_on_leak=false to allow them"
    )


def _found(leaks: Leaks, first: Sequence[Leak]) -> str:
    pairs = "".join(f"\n  {leak}" for leak in first)
    more = f"\n  and {leaks.total - len(first):,} more" if leaks.total > len(first) else ""
    return f"{count_in_words(leaks)} between the splits:{pairs}{more}"


def count_in_words(leaks: Leaks) -> str:
    """Reads like `2 exact copies and 1 member of a group`."""
    counts = (
        (leaks.exact, "exact copy", "exact copies"),
        (leaks.near or 0, "near copy", "near copies"),
        (leaks.group, "member of a group", "members of groups"),
    )
    return " and ".join(f"{count:,} {one if count == 1 else more}" for count, one, more in counts if count)


def leaks_in_words(manifest: Manifest) -> str:
    """What was found between the splits, what was looked for, and what to do about it."""
    leaks, splits = manifest.leaks, len(manifest.splits)
    looked = "exact copies and groups" + ("" if leaks.near is None else ", near copies")
    unseen = "; near copies were not looked for: dedupe: near" if leaks.near is None else ""
    if not leaks.total:
        return f"none between {splits} splits ({looked}{unseen})"
    return f"{count_in_words(leaks)} between {splits} splits, listed in {LEAKS}{_remedy(manifest)}{unseen}"


def _remedy(manifest: Manifest) -> str:
    """What keeps together what belongs together."""
    leaks = manifest.leaks
    given = f"; {leaks.given:,} by splits that the source gives: mend these there" if leaks.given else ""
    if leaks.given == leaks.total:
        return given
    return f"{given}; {_keeps_together(manifest)}"


def _keeps_together(manifest: Manifest) -> str:
    find = manifest.settings.get("dedupe", {}).get("find", "none")
    if find == "none":
        return "`dedupe: exact` keeps copies on one side"
    if find == "exact" and manifest.version == 1:
        return "`dedupe: near` looks at every input"  # not only at those that are stored with the same size
    return "what was there before never moves"
