"""Repair as a function: every file that is damaged or missing becomes what it was, byte for byte.

Small files come from their spare copies, an index from its shard, and a shard from its sources and from what is left of
it. Each file is made aside, held against its checksum, and only then put in place: a repair that was cut off is simply
repeated.
"""

import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Sized
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.config import BuildConfig
from pipelines.finish.spare import is_spared, read_spare, restore_manifest, write_spare
from pipelines.inputs.objects import use_options
from pipelines.mending.damaged import Damaged, find_unknown_inputs, list_jobs, list_neighbours, list_others
from pipelines.mending.mend import load_note, mend_shards, needs_duplicates
from pipelines.mending.remains import Job, Note, scan_extents
from pipelines.recipe import BYTE_MAKERS, Recipe, compare
from pipelines.versions.scan import scan_sources, store_scan, sum_identities
from pipelines.workspace.layout import BuildFolder
from pipelines.workspace.lock import announce, exclusive
from pipelines.writing.seen import IDENTITY, read_seen
from shards.__main__ import choose_processes
from shards.errors import ShardsmithError, UsageError
from shards.files import is_temporary, write_atomically
from shards.local import LOCAL, SEEN, write_local
from shards.manifest import MANIFEST, MANIFEST_COPY, SPARE, Manifest
from shards.progress import show_progress
from shards.verify import amount_of_work, verify

_BACKUP = "restore it from a backup, or build again with --overwrite"


@exclusive
def repair(config: BuildConfig, *, options: PipelineOptions) -> None:
    """Mends what is damaged and says from what; fails if something is lost, and says what and why."""
    use_options(options)
    folder = BuildFolder(Path(config.output))
    check_finished(folder)
    folder.finish_publishing()
    has_state = folder.state.is_dir()
    manifest, restored = restore_manifest(folder.root)
    other_makers = check_settings(manifest, config)
    damaged = Damaged(folder, manifest)
    damaged.found.update(dict.fromkeys(restored, "is damaged or missing"))
    damaged.mended.update(dict.fromkeys(restored, "from the other one"))
    find_damage(damaged, has_state=has_state)
    if not damaged.found:
        print(f"nothing to repair: every file of {config.output} is what it was")
        return
    print(f"damaged or missing in {config.output}:")
    _print_lines(f"{name}: {problem}" for name, problem in damaged.found.items())
    announce(folder.root)
    try:
        mend(damaged, config, options=options, other_makers=other_makers)
    except OSError as error:
        place = error.filename2 or error.filename or config.output
        raise ShardsmithError(f"the repair stopped: {error.strerror}: {place}; mend that and repair again") from error
    _tidy(folder)
    tell(damaged, config)


def _tidy(folder: BuildFolder) -> None:
    shutil.rmtree(folder.work / "repair", ignore_errors=True)
    if set(folder.work.iterdir()) <= {folder.holder}:  # else an interrupted command's work lies there
        shutil.rmtree(folder.work)


def check_finished(folder: BuildFolder) -> None:
    """Refuses what is no finished dataset."""
    if folder.is_unfinished and not folder.ready.exists():
        raise UsageError(f"output {folder.root} holds an unfinished build; finish it with `python -m pipelines build`")
    if not (folder.manifest.exists() or (folder.root / MANIFEST_COPY).exists() or folder.ready.exists()):
        raise UsageError(
            f"output {folder.root} holds no dataset: there is neither {MANIFEST} nor its copy {MANIFEST_COPY}; "
            "build it with `python -m pipelines build`"
        )


def check_settings(manifest: Manifest, config: BuildConfig) -> str:
    """Refuses other settings than those of the build; returns in words which packages are others.

    Such may write the same bytes nevertheless: the checksums will tell.
    """
    others: list[str] = []
    for each in compare(Recipe.of_manifest(manifest), Recipe.of(config)):
        if each.name not in (*BYTE_MAKERS, "shardsmith"):
            raise UsageError(
                f"{each.name} is {each.new}, but {config.output} was built with {each.old}; "
                "repair it with the settings of the build"
            )
        others.append(f"{each.name} {each.old}, here is {each.new}")
    return "; ".join(others)


def find_damage(damaged: Damaged, *, has_state: bool) -> None:
    """Reads every byte of the dataset."""
    root, manifest = damaged.folder.root, damaged.manifest
    total = amount_of_work(manifest, "full")
    with show_progress(total, "MB", sys.stderr) as tick:
        problems = verify(root, processes=choose_processes(total, "full"), tick=tick)
    for problem in problems:
        damaged.found.setdefault(problem.path, problem.message)
        damaged.mended.pop(problem.path, None)
    damaged.found.update(find_unknown_inputs(damaged) if has_state else _all_local_files(damaged))


def _all_local_files(damaged: Damaged) -> dict[str, str]:
    """Who copies a dataset may leave `state/seen` behind; but who has no `state` at all has lost that with it."""
    paths = [*(damaged.folder.seen(shard) for shard in damaged.shards), damaged.folder.sources]
    return {damaged.name_of(path): "the file is missing" for path in paths}


def mend(damaged: Damaged, config: BuildConfig, *, options: PipelineOptions, other_makers: str) -> None:
    """Does all that can be done, the cheapest first."""
    mend_from_spare(damaged)
    mend_indexes(damaged)
    mend_from_sources(damaged, config, options=options, other_makers=other_makers)
    mend_spare(damaged)
    mend_local(damaged, config)
    for name in damaged.left:
        if is_temporary(Path(name).name):
            (damaged.folder.root / name).unlink(missing_ok=True)
            damaged.mended[name] = "removed: a run that was cut off has left it"
        elif name in damaged.checksums:
            damaged.lost[name] = f"has no good copy in {SPARE}; {_BACKUP}"
        elif name == MANIFEST:
            damaged.lost[name] = f"its copy says the same; {_BACKUP}"
        else:
            damaged.lost[name] = "is no file of this dataset: move it away"
    check_mended(damaged)


def check_mended(damaged: Damaged) -> None:
    """Reads once more what was mended."""
    for name in damaged.mended:
        if name in damaged.checksums and not damaged.fits(name, damaged.folder.root / name):
            damaged.lost[name] = "was damaged again as soon as it was repaired; look after the disk"


def mend_from_spare(damaged: Damaged) -> None:
    """Takes small files from their copies."""
    root = damaged.folder.root
    names = [name for name in damaged.left if name in damaged.checksums and is_spared(name)]
    for name, content in read_spare(root, names):
        if damaged.fits(name, content):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(root / name, content)
            damaged.mended[name] = f"from {SPARE}"


def mend_indexes(damaged: Damaged) -> None:
    """Makes indexes again whose shards are good; also those of the version before."""
    for name in damaged.left:
        shard = f"{name.removesuffix('.idx')}.tfrecord"
        if name.endswith(".idx") and name in damaged.checksums and damaged.is_good(shard):
            content = index_of(damaged.folder.root / shard)
            if damaged.fits(name, content):
                write_atomically(damaged.folder.root / name, content)
                damaged.mended[name] = "from its shard"
    for entry in damaged.manifest.retired:
        if entry.path in damaged.left:
            damaged.lost[entry.path] = (
                "is of the version before, of which nothing is made again; the next version does without it"
            )


def index_of(shard: Path) -> bytes:
    """The index of a good shard."""
    return b"".join(b"%d %d\n" % extent for extent in scan_extents(shard))


def mend_from_sources(damaged: Damaged, config: BuildConfig, *, options: PipelineOptions, other_makers: str) -> None:
    """Makes shards again, and puts in place what has become what it was."""
    jobs = list_jobs(damaged)
    if not jobs:
        return
    print(f"making {_count(jobs, 'shard')} again from the sources", file=sys.stderr)
    staged = BuildFolder(damaged.folder.work / "repair")
    there = config.model_copy(update={"output": str(staged.root)})
    by_all = needs_duplicates(jobs, config) or config.splits.stratify  # what an input is depends on all others
    others = list_others(damaged, jobs) if by_all else list_neighbours(damaged, jobs)
    trouble = mend_shards(jobs, others, damaged.manifest, there, options)
    for job in jobs:
        note = load_note(staged, job.shard) or Note()
        names = sorted(job.damaged - damaged.mended.keys())
        good = [name for name in names if is_as_it_was(name, job, staged, damaged)]
        for name in good:
            _put(staged.root / name, damaged.folder.root / name)
            damaged.lost.pop(name, None)  # another shard did not give it
        damaged.mended.update(dict.fromkeys(good, describe_origin(note)))
        damaged.lost.update(dict.fromkeys(set(names) - set(good), explain(note, trouble, other_makers)))
    shutil.rmtree(staged.root)


def is_as_it_was(name: str, job: Job, staged: BuildFolder, damaged: Damaged) -> bool:
    """Whether a file that was made again is the one of the dataset.

    What was seen of the inputs is true if they still give the shard.
    """
    if name != job.name_of(job.folder.seen(job.shard)):
        return damaged.fits(name, staged.root / name)
    proof = [staged.shard(job.shard), staged.receipt(job.shard)]
    return (staged.root / name).exists() and all(
        damaged.fits(path.relative_to(staged.root).as_posix(), path) for path in proof
    )


def _put(made: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, place)


def describe_origin(note: Note) -> str:
    """From what a shard was made again."""
    if not note.read:
        return "from what is left of it"
    left = (
        f", and {_count(range(note.taken), 'record')} that {'is' if note.taken == 1 else 'are'} left"
        if note.taken
        else ""
    )
    return f"from {_count(range(note.read), 'input')}{left}"


def explain(note: Note, trouble: str, other_makers: str) -> str:
    """Why a shard did not become what it was."""
    if note.lost or note.changed:
        lines = [f"{key} {why}" for key, why in sorted(note.lost.items())]
        lines += [f"{key} has changed" for key in sorted(set(note.changed) - note.lost.keys())]
        remedy = (
            "restore these inputs and repair again, or make a version without them with `python -m pipelines append`"
        )
        return "\n    ".join([trouble or "inputs that it needs are not what they were:", *lines, remedy])
    if trouble:
        return f"{trouble}; restore the sources and repair again"
    if other_makers:
        return f"made again it has other bytes: it was built with {other_makers}; install that and repair again"
    return (
        "made again from its inputs it has other bytes: some were added, changed or removed, and which is lost too; "
        "restore the sources and repair again, or build again with --overwrite"
    )


def mend_spare(damaged: Damaged) -> None:
    """Makes the archive of copies again, if all that it held is good."""
    if SPARE not in damaged.left:
        return
    names = [entry.path for entry in damaged.manifest.files]
    if missing := [name for name in names if is_spared(name) and not damaged.is_good(name)]:
        damaged.lost[SPARE] = f"held a copy of {missing[0]}, which is damaged too; {_BACKUP}"
        return
    made = damaged.folder.work / SPARE
    made.parent.mkdir(exist_ok=True)
    write_spare(damaged.folder.root, names, made)
    if damaged.fits(SPARE, made):
        os.replace(made, damaged.folder.root / SPARE)
        damaged.mended[SPARE] = "from the files themselves"


def mend_local(damaged: Damaged, config: BuildConfig) -> None:
    """Brings what is true on this machine only in line with the files that are there."""
    folder = damaged.folder
    if not any(name == LOCAL or name.startswith(f"{SEEN}/") for name in damaged.found):
        return
    if damaged.name_of(folder.sources) in damaged.left:
        mend_scan(damaged, config)
    if not all(damaged.is_good(damaged.name_of(folder.seen(shard))) for shard in damaged.shards):
        if LOCAL in damaged.left:
            damaged.lost[LOCAL] = f"lists files of {SEEN} that are lost"
        return
    ours = [*(folder.seen(shard) for shard in damaged.shards), folder.sources]
    write_local(folder.root, [path for path in ours if path.exists()])
    if LOCAL in damaged.left:
        damaged.mended[LOCAL] = f"from the files in {SEEN}"


def mend_scan(damaged: Damaged, config: BuildConfig) -> None:
    """Makes the number of the sources again, if they are what they were."""
    folder, name = damaged.folder, damaged.name_of(damaged.folder.sources)
    try:
        now = scan_sources(config)
        then = sum_identities(read_seen(folder.seen(shard), (IDENTITY,))[IDENTITY] for shard in damaged.shards)
    except (ShardsmithError, OSError, ValueError):
        now, then = 0, 1
    if now == then:
        store_scan(now, folder)
        damaged.mended[name] = "from the sources"
    else:
        folder.sources.unlink(missing_ok=True)
        damaged.mended[name] = (
            "removed: the sources may have changed since; `python -m pipelines append` makes it again"
        )


def tell(damaged: Damaged, config: BuildConfig) -> None:
    """Says what was mended and from what; fails if something is lost."""
    if damaged.mended:
        print("repaired:")
        _print_lines(f"{name}: {origin}" for name, origin in damaged.mended.items())
    if not damaged.lost:
        print(f"good: every file of {config.output} is again what it was")
        print(f"next: python -m shards verify {config.output}")
        return
    names = defaultdict(list)
    for name, why in damaged.lost.items():
        names[why].append(name)
    told = "".join(f"\n  {', '.join(each)}: {why}" for why, each in names.items())
    raise ShardsmithError(f"{_count(damaged.lost)} of {config.output} could not be repaired:{told}")


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"  {line}")


def _count(things: Sized, name: str = "file") -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"
