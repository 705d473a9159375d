"""Command line of the dataset format: check, look into, compare datasets. Needs neither Beam nor TensorFlow."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from shards import __version__
from shards.errors import DONE, FAILED, ShardsmithError, UsageError, run
from shards.example import Values, decode_example
from shards.manifest import Manifest, SplitEntry, read_manifest
from shards.records import DamagedRecord, read_records
from shards.samples import make_sample, show_values
from shards.verify import Level, amount_of_work
from shards.verify import verify as find_problems

QUICKLY_READ_BYTES = 200_000_000  # by one process, before others would have started
_HOLDS: dict[Level, str] = {
    "fast": "sizes and indexes hold; no other file was read: run without --fast",
    "full": "every checksum, index and count holds",
    "decode": "every checksum, index and count holds, every picture can be decoded",
}

_VERSIONS = 10  # of the history, that inspect shows


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m shards",
        description="Check, look into and compare dataset directories.",
        epilog="Exit codes: 0 good, 1 damaged or not a dataset, 2 bad usage. Of diff: 0 same, 1 different, 2 trouble.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shardsmith {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="verify|inspect|diff")
    _add_verify(commands)
    _add_inspect(commands)
    _add_diff(commands)
    return parser


def _add_verify(commands: Any) -> None:
    verify = commands.add_parser(
        "verify", help="re-read every record and compare everything with the manifest", allow_abbrev=False
    )
    verify.add_argument("directory", metavar="DIR", type=Path)
    levels = verify.add_mutually_exclusive_group()
    levels.add_argument(
        "--fast",
        dest="level",
        action="store_const",
        const="fast",
        help="check the sizes of all files, and the indexes; read no shard",
    )
    levels.add_argument(
        "--decode",
        dest="level",
        action="store_const",
        const="decode",
        help="decode every picture too, and compare its size with the record's",
    )
    verify.set_defaults(level="full")
    verify.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="files to check at a time (default: one per core, if the data is large)",
    )


def _add_inspect(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect", help="print splits, classes, features and the first records", allow_abbrev=False
    )
    inspect.add_argument("directory", metavar="DIR", type=Path)
    inspect.add_argument("--split", help="whose records to show (default: the first split that has any)")
    inspect.add_argument("--records", type=int, default=3, metavar="N", help="how many records to print (default 3)")
    inspect.add_argument(
        "--show", type=int, default=0, metavar="N", help="write a contact sheet of the first N pictures"
    )
    inspect.add_argument(
        "--sheet",
        type=Path,
        default=Path("contact-sheet.png"),
        metavar="PNG",
        help="where (default ./contact-sheet.png)",
    )


def _add_diff(commands: Any) -> None:
    diff = commands.add_parser(
        "diff",
        help="print which examples, classes and settings differ between two datasets",
        epilog="Exit codes: 0 same, 1 different, 2 trouble: a dataset is missing or damaged, or bad usage. Shards that "
        "both manifests list with the same sha256 are not read; `verify` tells whether they are what they should be.",
        allow_abbrev=False,
    )
    diff.add_argument("old", metavar="A", type=Path)
    diff.add_argument("new", metavar="B", type=Path)
    diff.add_argument(
        "--examples", type=int, default=10, metavar="N", help="how many to list of each kind of difference (default 10)"
    )
    diff.add_argument("--json", action="store_true", help="print one JSON object with all differences, and no text")


def verify(directory: Path, *, level: Level, processes: int | None) -> int:
    """Prints what is wrong, or that nothing is."""
    if processes is not None and processes < 1:
        raise UsageError(f"--processes {processes} must be at least 1")
    from shards.progress import show_progress

    manifest = read_manifest(directory)
    total = amount_of_work(manifest, level)
    processes = processes or choose_processes(total, level)
    with show_progress(total, "files" if level == "fast" else "MB", sys.stderr) as tick:
        problems = find_problems(directory, level=level, processes=processes, tick=tick)
    for problem in problems:
        print(problem)
    if problems:
        found = "1 problem" if len(problems) == 1 else f"{len(problems):,} problems"
        print(f"damaged: {found} in {directory}; mend it with `python -m pipelines repair CONFIG`")
        return FAILED
    _print_good(manifest, directory, level)
    return DONE


def choose_processes(total: int, level: Level) -> int:
    """One per core, unless one alone has done so much work before others would have started."""
    is_quick = level == "fast" or (level == "full" and total < QUICKLY_READ_BYTES)
    return 1 if is_quick else os.cpu_count() or 1


def _print_good(manifest: Manifest, directory: Path, level: Level) -> None:
    shards = [shard for split in manifest.splits for shard in split.shards]
    size = f"{len(shards):,} shards ({sum(shard.bytes for shard in shards) / 1e6:,.1f} MB)"
    print(f"good: {manifest.counts.written:,} records in {size}, {_HOLDS[level]}")
    print(f"next: python -m shards inspect {directory} --show 32")
    print(f"  or: python -m trainer train CONFIG --dataset {directory}")


def inspect(directory: Path, *, split: str | None, records: int, show: int, sheet: Path) -> int:
    """Prints what the dataset holds."""
    if min(records, show) < 0:
        raise UsageError(f"--records {records} and --show {show} must not be negative")
    manifest = read_manifest(directory)
    chosen = manifest.split(split) if split else next((s for s in manifest.splits if s.records), None)
    _print_manifest(manifest)
    if chosen is None:
        raise ShardsmithError(f"no split of {directory} has any records")
    print(f"first records of {chosen.name}:")
    for example in islice(read_examples(directory, chosen), records):
        print("  " + "  ".join(f"{name}={show_values(values)}" for name, values in example.items()))
    if show:
        _write_sheet(directory, chosen, manifest, show, sheet)
    return DONE


def diff(old: Path, new: Path, *, examples: int, json: bool) -> int:
    """Prints what differs, or that nothing does."""
    if examples < 0:
        raise UsageError(f"--examples {examples} must not be negative")
    from rich.console import Console
    from rich.progress import Progress

    from shards.diff import DIFFERENT, DiffTrouble, compare_datasets
    from shards.diff_print import json_pieces, text_lines

    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
            difference = compare_datasets(old, new, track=partial(progress.track, description="reading"))
        for piece in json_pieces(difference) if json else text_lines(difference, limit=examples):
            print(piece, end="" if json else "\n")
    except KeyboardInterrupt as interrupt:
        raise DiffTrouble("interrupted") from interrupt
    except ShardsmithError as error:
        raise DiffTrouble(str(error)) from error
    return DIFFERENT if difference else DONE


def read_examples(directory: Path, split: SplitEntry) -> Iterator[dict[str, Values]]:
    """The examples of a split in stored order."""
    for shard in split.shards:
        try:
            with (directory / shard.path).open("rb") as stream:
                for _, record in read_records(stream):
                    yield decode_example(record)
        except (OSError, DamagedRecord, ValueError) as error:
            raise ShardsmithError(f"{shard.path}: {error}; `python -m shards verify` lists all damage") from error


def _write_sheet(directory: Path, split: SplitEntry, manifest: Manifest, count: int, path: Path) -> None:
    from shards.sheet import write_sheet

    if all(feature.name != "image" for feature in manifest.features):
        raise UsageError(f"{directory} holds rows of features and no pictures; leave out --show")
    pictures = [make_sample(example) for example in islice(read_examples(directory, split), count)]
    if not pictures:
        raise ShardsmithError(f"split {split.name!r} has no pictures to show; choose another with --split")
    if any(not picture.image for picture in pictures):
        raise ShardsmithError("a record has no image to show; `python -m shards verify` lists all damage")
    try:
        write_sheet(pictures, path)
    except OSError as error:
        raise UsageError(f"--sheet {path} cannot be written: {error.strerror}") from error
    print(f"wrote {len(pictures)} pictures of {split.name} to {path}")


def _print_manifest(manifest: Manifest) -> None:
    written, rejected = manifest.counts.written, sum(manifest.counts.rejected.values())
    print(f"{manifest.name}: {written:,} examples {manifest.label_summary}, {rejected:,} inputs rejected")
    for split in manifest.splits:
        size = f"{split.records:>10,} records {len(split.shards):>6,} shards {split.bytes / 1e6:>12,.1f} MB"
        print(f"  {split.name:<12} {size}")
    if manifest.labels:
        _print_labels(manifest)
    if any(feature.name == "boxes" for feature in manifest.features):
        print(f"boxes: {manifest.counts.boxes_kept:,}, and {manifest.counts.boxes_dropped:,} dropped")
    print("features:")
    for feature in manifest.features:
        print(f"  {feature.name:<12} {feature.type:<6} {feature.description}")
    if manifest.history:
        _print_history(manifest)


def _print_history(manifest: Manifest) -> None:
    """The newest versions, each with what it changed, when, by which command and with which settings."""
    print(f"version {manifest.version}:")
    for entry in manifest.history[-_VERSIONS:]:
        inputs = f"{entry.added:,} added, {entry.removed:,} removed, {entry.changed:,} changed: {entry.inputs:,} inputs"
        shards = f"{entry.new_shards:,} new shards, {entry.ended_shards:,} ended"
        print(f"  {entry.version:<4} {entry.when}  {entry.command:<8} {inputs}; {shards}")
        for name, (old, new) in entry.settings.items():
            print(f"       {name}: {old} -> {new}")
    if len(manifest.history) > _VERSIONS:
        print(f"  and {len(manifest.history) - _VERSIONS:,} before, in manifest.json")


def _print_labels(manifest: Manifest) -> None:
    print("classes:")
    for label in manifest.labels[:20]:
        print(f"  {label:<24} " + "  ".join(f"{s.name} {s.labels.get(label, 0):,}" for s in manifest.splits))
    if len(manifest.labels) > 20:
        print(f"  and {len(manifest.labels) - 20:,} more")


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    arguments = vars(make_parser().parse_args(argv))
    commands: dict[str, Callable[..., int]] = {"verify": verify, "inspect": inspect, "diff": diff}
    return commands[arguments.pop("command")](**arguments)


if __name__ == "__main__":
    sys.exit(run(lambda: main(sys.argv[1:])))
