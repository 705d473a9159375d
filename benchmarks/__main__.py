"""Command line of the benchmarks: one command each, and `readme`, which puts their numbers where people read them."""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks import durable, input, preprocess, resume, sources
from benchmarks.measure import ROOT
from benchmarks.report import Benchmark, Row, print_rows, read_rows, replace_table
from shards.errors import DONE, UsageError, run
from shards.files import write_atomically

BENCHMARKS: tuple[Benchmark, ...] = (
    preprocess.BENCHMARK,
    sources.BENCHMARK,
    durable.BENCHMARK,
    resume.BENCHMARK,
    input.BENCHMARK,
)
_EPILOG = """\
examples:
  python -m benchmarks preprocess photos
  python -m benchmarks preprocess photos --json > preprocess.jsonl
  python -m benchmarks sources photos --only npz tar
  python -m benchmarks durable photos
  python -m benchmarks resume photos
  python -m benchmarks input photos --peers-python peers/bin/python
  python -m benchmarks readme preprocess.jsonl sources.jsonl

Work is done in the system's temporary directory (TMPDIR); nothing is written to DIR. Close other programs: a busy
machine makes every number worse, though less so the ratios.
Exit codes: 0 measured, whether or not targets are met; 1 a contestant failed; 2 bad usage.
"""


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what the README claims.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for benchmark in BENCHMARKS:
        command = commands.add_parser(benchmark.name, help=benchmark.summary, description=benchmark.summary)
        benchmark.add_arguments(command)
        command.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    readme = commands.add_parser("readme", help="put the rows of --json files into the README's table")
    readme.add_argument("files", metavar="FILE.jsonl", nargs="+", type=Path, help="what --json printed")
    readme.add_argument(
        "--readme", metavar="README.md", type=Path, default=ROOT / "README.md", help="the file to change"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.command == "readme":
        write_readme(arguments.files, arguments.readme)
        return DONE
    benchmark = next(each for each in BENCHMARKS if each.name == arguments.command)
    rows = [*benchmark.run(arguments), *machine_rows()]
    print_rows(rows, title=f"{benchmark.name} on {machine_name()}", as_json=arguments.json)
    return DONE


def write_readme(files: Sequence[Path], readme: Path) -> None:
    """Replaces the table in the README."""
    # A later file wins: the machine's rows come with every benchmark.
    rows = {row.name: row for file in files for row in read_rows(file)}
    if not readme.is_file():
        raise UsageError(f"{readme} does not exist; name the file with --readme")
    text = replace_table(readme.read_text(encoding="utf-8"), list(rows.values()), place=str(readme))
    write_atomically(readme, text.encode())
    print(f"{len(rows)} rows written to {readme}")


def machine_rows() -> list[Row]:
    """What the numbers depend on most."""
    return [
        Row("machine.cores", os.cpu_count() or 1, "cores"),
        Row("machine.memory", psutil.virtual_memory().total / 1e9, "GB"),
    ]


def machine_name() -> str:
    """The processor and the Python that ran."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in cpuinfo if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} x {model}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(run(lambda: main(sys.argv[1:])))
