"""How near to the metal a build is: ours, a bare loop over the same files and the usual Beam tutorial, side by side."""

import json
import math
import os
import re
import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.bare import usable_files
from benchmarks.measure import Run, Watch, measure
from benchmarks.report import Benchmark, Row
from shards.errors import UsageError

JPEG_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})
CLASSES = 10
GROWTH = 10  # how many times fewer images the small build of the growth test has
BARE, BUILD, TUTORIAL = "bare", "build", "tutorial"
# Start-up: imports and checks.  Commit: tf.Transform and everything after the last shard.
PHASES = ("start", "list", "write", "commit")
GIGABYTE = 1e9


@dataclass(frozen=True)
class Bench:
    """Where the benchmark works, and what is asked of the three contestants."""

    folder: Path
    images: int
    side: int

    @property
    def tree(self) -> Path:
        """The class folders."""
        return self.folder / f"tree_{self.images}"

    @property
    def output(self) -> Path:
        """Where a contestant writes; emptied after each run."""
        return self.folder / "output"


@dataclass(frozen=True)
class Round:
    """One run of each contestant, at nearly the same time."""

    runs: Mapping[str, Run]

    def speedup(self, other: str) -> float:
        """Images per second of the build, relative to another's."""
        return self.runs[other].seconds / self.runs[BUILD].seconds

    def cpu_speedup(self, other: str) -> float:
        """Images per CPU-second of the build, relative to another's."""
        return self.runs[other].cpu_seconds / self.runs[BUILD].cpu_seconds


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `preprocess`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="any folder with JPEG files, at any depth")
    parser.add_argument("--images", type=int, default=20_000, help="files to process; the JPEGs repeat (20000)")
    parser.add_argument("--resize", default="center_crop:256", metavar="center_crop:SIZE", help="(center_crop:256)")
    parser.add_argument("--rounds", type=int, default=3, help="each round runs all three; medians are shown (3)")
    parser.add_argument("--skip-growth", action="store_true", help="leave out the build of a tenth of the images")


def run(arguments: Namespace) -> list[Row]:
    """Measures and returns the rows."""
    side = parse_side(arguments.resize)
    check_numbers(arguments)
    originals = find_jpegs(arguments.folder, limit=arguments.images, side=side)
    with tempfile.TemporaryDirectory(prefix="shardsmith_bench_") as folder:
        bench = Bench(Path(folder), arguments.images, side)
        link_images(originals, bench)
        rounds = [run_round(bench, number, arguments.rounds) for number in range(1, arguments.rounds + 1)]
        small = None if arguments.skip_growth else run_small_build(originals, bench)
    return [*comparison_rows(rounds), *memory_rows(rounds, small), *absolute_rows(rounds, arguments.images)]


def parse_side(resize: str) -> int:
    """The side in `center_crop:SIDE`: the one mode that all three contestants have."""
    found = re.fullmatch(r"center_crop:([1-9]\d*)", resize)
    if not found:
        raise UsageError(f"--resize {resize}: this benchmark takes center_crop:SIZE, which all contestants can do")
    return int(found[1])


def check_numbers(arguments: Namespace) -> None:
    """Refuses sizes that cannot be measured."""
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: at least 1 is needed")
    if arguments.images < 2 * CLASSES:
        raise UsageError(f"--images {arguments.images}: at least {2 * CLASSES} are needed")


def find_jpegs(folder: Path, *, limit: int, side: int) -> list[str]:
    """JPEG files that every contestant can process, at most `limit`, spread evenly over the folder's."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a directory")
    paths = sorted(str(path.resolve()) for path in folder.rglob("*") if path.suffix.lower() in JPEG_SUFFIXES)
    usable = usable_files(paths[:: max(1, len(paths) // limit)][:limit], side)
    if not usable:
        raise UsageError(f"{folder} has no JPEG file that can be decoded; other formats are not compared")
    _say(f"{len(usable):,} of {len(paths):,} JPEG files below {folder}; other formats are left out")
    return usable


def link_images(originals: Sequence[str], bench: Bench) -> None:
    """Makes the tree: symbolic links in class folders, each original as often as needed under names of its own."""
    for number in range(CLASSES):
        (bench.tree / f"class_{number}").mkdir(parents=True)
    for number in range(bench.images):
        link = bench.tree / f"class_{number % CLASSES}" / f"image_{number:07d}.jpg"
        link.symlink_to(originals[number % len(originals)])


def run_round(bench: Bench, number: int, rounds: int) -> Round:
    """Runs the three contestants one after the other."""
    runs = {}
    for name, start in {BARE: run_bare, BUILD: run_build, TUTORIAL: run_tutorial}.items():
        with _clean_output(bench):
            runs[name] = start(bench)
        _say(f"round {number} of {rounds}: {name} {_describe(runs[name], bench)}")
    return Round(runs)


def run_bare(bench: Bench) -> Run:
    """The bare loop."""
    return measure(_python("benchmarks.bare", bench.tree, bench.side))


def run_build(bench: Bench) -> Run:
    """Our build, as a user starts it."""
    resize = f"--resize=center_crop:{bench.side}"
    command = _python("pipelines", "build", "--source", bench.tree, "--output", bench.output, resize)
    return measure(command, watch=watch_build(bench.output))


def run_tutorial(bench: Bench) -> Run:
    """The tutorial's pipeline."""
    return measure(_python("benchmarks.tutorial", bench.tree, bench.output, bench.side))


def _python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


@contextmanager
def _clean_output(bench: Bench) -> Iterator[None]:
    # What an earlier run left to be written to disk must not be counted against the next.
    os.sync()
    yield
    shutil.rmtree(bench.output, ignore_errors=True)


def watch_build(output: Path) -> Watch:
    """Tells from the build's folder which phase it is in, by its files: importing `pipelines` would bring in Beam."""
    work, shards = output / "state", 0

    def phase() -> str:
        nonlocal shards
        shards = shards or _planned_shards(work / "plan.json")
        if not shards:
            return "list" if work.exists() else "start"
        return "write" if _receipts(work / "receipts") < shards else "commit"

    return phase


def _receipts(folder: Path) -> float:
    try:
        return sum(name.endswith(".json") for name in os.listdir(folder))
    except FileNotFoundError:  # Removed, which is the last step of a commit.
        return math.inf


def _planned_shards(plan: Path) -> int:
    return sum(len(split["starts"]) for split in json.loads(plan.read_text())["splits"]) if plan.exists() else 0


def run_small_build(originals: Sequence[str], bench: Bench) -> Run:
    """A build of a tenth of the images."""
    small = Bench(bench.folder, bench.images // GROWTH, bench.side)
    link_images(originals, small)
    with _clean_output(small):
        result = run_build(small)
    _say(f"growth: {_describe(result, small)}")
    return result


def comparison_rows(rounds: Sequence[Round]) -> list[Row]:
    """Ours against the others; a ratio is taken inside a round, where the machine was equally busy."""
    rows = []
    for other, target in ((BARE, ">= 0.8"), (TUTORIAL, ">= 1.6")):
        wall, cpu = median(r.speedup(other) for r in rounds), median(r.cpu_speedup(other) for r in rounds)
        rows += [
            Row(f"preprocess.vs_{other}", wall, "ratio", target),
            Row(f"preprocess.vs_{other}_cpu", cpu, "ratio", target),
        ]
    return rows


def memory_rows(rounds: Sequence[Round], small: Run | None) -> list[Row]:
    """The build's peak, and how it grows."""
    peak = _median(rounds, BUILD, _peak)
    rows = [Row("preprocess.peak_memory", peak / GIGABYTE, "GB", "<= 1.2")]
    if small is not None:
        rows.append(Row("preprocess.memory_growth", peak / _peak(small), "ratio", "<= 1.2"))
    return rows


def absolute_rows(rounds: Sequence[Round], images: int) -> list[Row]:
    """The numbers behind the ratios."""
    rows = [Row("preprocess.images", images, "images")]
    for name in (BUILD, BARE, TUTORIAL):
        rows.append(Row(f"preprocess.rate.{name}", images / _median(rounds, name, _seconds), "images/s"))
    for name in (BUILD, BARE, TUTORIAL):
        rate = images / _median(rounds, name, _cpu_seconds)
        rows.append(Row(f"preprocess.cpu_rate.{name}", rate, "images/CPU-s"))
    rows += [
        Row(f"preprocess.peak_memory.{name}", _median(rounds, name, _peak) / GIGABYTE, "GB")
        for name in (BARE, TUTORIAL)
    ]
    return rows + [Row(f"preprocess.phase.{phase}", seconds, "s") for phase, seconds in phase_seconds(rounds).items()]


def phase_seconds(rounds: Sequence[Round]) -> dict[str, float]:
    """How long each phase of the build took; one that is shorter than a sample does not show."""
    builds = [each.runs[BUILD].phases for each in rounds]
    seen = {name: [phases[name] for phases in builds if name in phases] for name in PHASES}
    return {name: median(seconds) for name, seconds in seen.items() if seconds}


def _median(rounds: Sequence[Round], name: str, value: Callable[[Run], float]) -> float:
    return median(value(r.runs[name]) for r in rounds)


def _seconds(result: Run) -> float:
    return result.seconds


def _cpu_seconds(result: Run) -> float:
    return result.cpu_seconds


def _peak(result: Run) -> float:
    return result.peak_bytes


def _describe(result: Run, bench: Bench) -> str:
    wall, cpu = bench.images / result.seconds, bench.images / result.cpu_seconds
    return f"{wall:,.0f} images/s, {cpu:,.0f} images/CPU-s, {result.peak_bytes / GIGABYTE:.2f} GB"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


BENCHMARK = Benchmark("preprocess", "a build against a bare loop and the usual Beam tutorial", add_arguments, run)
