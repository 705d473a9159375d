"""Command line of the dataset format: check a dataset, look into one. Needs neither Beam nor TensorFlow."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shards import __version__
from shards.errors import DONE, FAILED, ShardsmithError, UsageError, run
from shards.example import decode_example
from shards.manifest import Manifest, SplitEntry, read_manifest
from shards.records import DamagedRecord, read_records


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m shards",
        description="Check and look into a dataset directory.",
        epilog="Exit codes: 0 good, 1 damaged or not a dataset, 2 bad usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shardsmith {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="verify|inspect")
    verify = commands.add_parser("verify", help="re-read every record and compare everything with the manifest")
    verify.add_argument("directory", metavar="DIR", type=Path)
    inspect = commands.add_parser("inspect", help="print splits, classes, features and the first records")
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
    return parser


def verify(directory: Path) -> int:
    """Prints what is wrong, or that nothing is."""
    from rich.console import Console
    from rich.progress import Progress

    from shards.verify import verify as find_problems

    manifest = read_manifest(directory)
    total = sum(split.bytes for split in manifest.splits)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=total)
        problems = find_problems(directory, tick=lambda shard: progress.advance(task, shard.bytes))
    for problem in problems:
        print(problem)
    records, count = manifest.counts.written, sum(len(split.shards) for split in manifest.splits)
    if problems:
        print(f"damaged: {len(problems)} problems in {directory}; restore the files named above or rebuild the dataset")
        return FAILED
    print(
        f"good: {records:,} records in {count:,} shards ({total / 1e6:,.1f} MB), every checksum, index and count holds"
    )
    print(
        f"next: python -m shards inspect {directory} --show 32, or train: python -m trainer train CONFIG --dataset {directory}"
    )
    return DONE


def inspect(directory: Path, *, split: str | None, records: int, show: int, sheet: Path) -> int:
    """Prints what the dataset holds."""
    if min(records, show) < 0:
        raise UsageError(f"--records {records} and --show {show} must not be negative")
    manifest = read_manifest(directory)
    chosen = manifest.split(split) if split else next((s for s in manifest.splits if s.records), manifest.splits[0])
    _print_manifest(manifest)
    for example in islice(read_examples(directory, chosen), records):
        print("  " + "  ".join(f"{name}={_show(values)}" for name, values in example.items()))
    if show:
        from shards.sheet import write_sheet

        pictures = [
            (e["image"][0], e["label_name"][0].decode()) for e in islice(read_examples(directory, chosen), show)
        ]
        write_sheet(pictures, sheet)
        print(f"wrote {len(pictures)} pictures of {chosen.name} to {sheet}")
    return DONE


def read_examples(directory: Path, split: SplitEntry) -> Iterator[dict[str, Any]]:
    """The examples of a split in stored order."""
    for shard in split.shards:
        try:
            with (directory / shard.path).open("rb") as stream:
                for _, record in read_records(stream):
                    yield decode_example(record)
        except (OSError, DamagedRecord, ValueError) as error:
            raise ShardsmithError(f"{shard.path}: {error}; `python -m shards verify` lists all damage") from error


def _print_manifest(manifest: Manifest) -> None:
    counts = manifest.counts
    print(
        f"{manifest.name}: {counts.written:,} examples of {len(manifest.labels):,} classes, {sum(counts.rejected.values()):,} inputs rejected"
    )
    for split in manifest.splits:
        print(
            f"  {split.name:<12} {split.records:>10,} records {len(split.shards):>6,} shards {split.bytes / 1e6:>12,.1f} MB"
        )
    print("classes:")
    for label in manifest.labels[:20]:
        print(f"  {label:<24} " + "  ".join(f"{s.name} {s.labels.get(label, 0):,}" for s in manifest.splits))
    if len(manifest.labels) > 20:
        print(f"  and {len(manifest.labels) - 20:,} more")
    print("features:")
    for feature in manifest.features:
        print(f"  {feature.name:<12} {feature.type:<6} {feature.description}")
    print("first records:")


def _show(values: list[Any]) -> str:
    value = values[0] if values else None
    if isinstance(value, bytes):
        return repr(value.decode()) if len(value) < 100 and value.isascii() else f"<{len(value):,} bytes>"
    return f"{value}"


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    arguments = vars(make_parser().parse_args(argv))
    command = {"verify": verify, "inspect": inspect}[arguments.pop("command")]
    return command(**arguments)


if __name__ == "__main__":
    sys.exit(run(lambda: main(sys.argv[1:])))
