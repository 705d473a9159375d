"""What a source's form costs: the same pictures built from every kind of source, against plain files in the same run.

The rate is that of listing and writing, from the start of the job to the last shard, spooling included: start-up and
commit are the same for all. Arrays hold pixels, so they are compared with BMP files of the same pixels. Memory is the
peak of the process tree, for all pictures and for a tenth of them.
"""

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from benchmarks import packing
from benchmarks.bare import process_file
from benchmarks.measure import Run, measure
from benchmarks.preprocess import GIGABYTE, GROWTH, find_jpegs, watch_build
from benchmarks.report import Benchmark, Row
from shards.errors import UsageError

SIDE, LARGE_SIDE, STORED_SIDE = 256, 256, 224
MOST_PICTURES = 500  # distinct ones; they are held in memory while sources are packed
FILES, BITMAPS, GREY_BITMAPS = "files", "bmp_files", "grey_bmp_files"


@dataclass(frozen=True)
class Contestant:
    """A kind of source: how it is packed, and what it is compared with."""

    name: str
    pack: packing.Packer
    against: str


CONTESTANTS = (
    Contestant(FILES, packing.pack_files, FILES),
    Contestant("csv", packing.pack_csv, FILES),
    Contestant("parquet", packing.pack_parquet, FILES),
    Contestant("tar", packing.pack_tar, FILES),
    Contestant("zip", packing.pack_zip, FILES),
    Contestant("zip_deflated", packing.pack_zip_deflated, FILES),
    Contestant("tfrecord", packing.pack_tfrecord, FILES),
    Contestant("python", packing.pack_python, FILES),
    Contestant(BITMAPS, packing.pack_bitmaps, BITMAPS),
    Contestant("npy", packing.pack_npy, BITMAPS),
    Contestant("npz", packing.pack_npz, BITMAPS),
    Contestant("npz_compressed", packing.pack_npz_compressed, BITMAPS),
    Contestant(GREY_BITMAPS, packing.pack_grey_bitmaps, GREY_BITMAPS),
    Contestant("idx", packing.pack_idx, GREY_BITMAPS),
)
NAMES = tuple(contestant.name for contestant in CONTESTANTS)


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `sources`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="any folder with JPEG files, at any depth")
    parser.add_argument("--images", type=int, default=10_000, help="pictures in each source; the JPEGs repeat (10000)")
    parser.add_argument("--rounds", type=int, default=1, help="each round builds all; medians are shown (1)")
    parser.add_argument("--only", nargs="+", choices=NAMES, help="some kinds; what they are compared with comes along")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="size of the large npz and generator; 0: none (4)")


def run(arguments: Namespace) -> list[Row]:
    """Measures and returns the rows."""
    check_numbers(arguments)
    chosen = choose(arguments.only)
    files = find_jpegs(arguments.folder, limit=MOST_PICTURES, side=SIDE)
    pictures = [process_file(path, SIDE) for path in files]
    with tempfile.TemporaryDirectory(prefix="shardsmith_bench_") as folder:
        bench = _Bench(Path(folder), pictures)
        rounds = [bench.run_round(chosen, arguments.images) for _ in range(arguments.rounds)]
        small = bench.run_round(chosen, arguments.images // GROWTH)
        large = bench.run_large(arguments.gigabytes) if arguments.gigabytes else {}
    return [*comparison_rows(chosen, rounds, arguments.images), *memory_rows(rounds, small), *large_rows(large)]


def check_numbers(arguments: Namespace) -> None:
    """Refuses sizes that cannot be measured."""
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: at least 1 is needed")
    if arguments.images < GROWTH * packing.CLASSES:
        raise UsageError(f"--images {arguments.images}: at least {GROWTH * packing.CLASSES} are needed")
    if arguments.gigabytes < 0:
        raise UsageError(f"--gigabytes {arguments.gigabytes} must not be negative")


def choose(names: Sequence[str] | None) -> list[Contestant]:
    """The contestants asked for, and those that they are compared with."""
    if not names:
        return list(CONTESTANTS)
    wanted = set(names) | {each.against for each in CONTESTANTS if each.name in names}
    return [each for each in CONTESTANTS if each.name in wanted]


@dataclass(frozen=True)
class _Bench:
    folder: Path
    pictures: Sequence[bytes]

    def run_round(self, chosen: Sequence[Contestant], images: int) -> dict[str, Run]:
        """Builds from each source once."""
        runs = {}
        for contestant in chosen:
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                runs[contestant.name] = self._build(contestant.pack(self.pictures, images, Path(place)), Path(place))
            rate = images / job_seconds(runs[contestant.name])
            _say(f"{contestant.name}: {images:,} pictures, {rate:,.0f} images/s, {_peak(runs[contestant.name]):.2f} GB")
        return runs

    def run_large(self, gigabytes: float) -> dict[str, tuple[Run, Run]]:
        """An npz and a generator of a thousandth of the size, and of the whole."""
        return {
            "npz_compressed": self._grow("npz", gigabytes),
            "python": self._grow("generator", gigabytes),
        }

    def _grow(self, what: str, gigabytes: float) -> tuple[Run, Run]:
        runs = []
        for size in (gigabytes / 1000, gigabytes):
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                pack = packing.pack_large_npz(size, LARGE_SIDE, Path(place)) if what == "npz" else None
                source = pack or packing.describe_large_generator(size, LARGE_SIDE)
                runs.append(self._build(source, Path(place), stored=32))
            _say(f"{what} of {size:g} GB: {_peak(runs[-1]):.2f} GB of memory")
        return runs[0], runs[1]

    def _build(self, source: packing.Settings, place: Path, *, stored: int = STORED_SIDE) -> Run:
        output, config = place / "output", place / "build.yaml"
        settings = {"source": source, "output": str(output), "image": {"resize": f"center_crop:{stored}"}}
        config.write_text(yaml.safe_dump(settings))
        return measure([sys.executable, "-m", "pipelines", "build", str(config)], watch=watch_build(output))


def job_seconds(result: Run) -> float:
    """Listing and writing, without start-up and commit."""
    return sum(result.phases.get(phase, 0.0) for phase in ("list", "write"))


def comparison_rows(chosen: Sequence[Contestant], rounds: Sequence[Mapping[str, Run]], images: int) -> list[Row]:
    """The rate of each kind as a fraction of that of plain files; taken inside a round."""
    rows = [Row("sources.images", images, "images")]
    for each in chosen:
        if each.name != each.against:
            ratio = median(job_seconds(runs[each.against]) / job_seconds(runs[each.name]) for runs in rounds)
            rows.append(Row(f"sources.{each.name}.vs_{each.against}", ratio, "ratio", ">= 0.7"))
    for each in chosen:
        rate = images / median(job_seconds(runs[each.name]) for runs in rounds)
        rows.append(Row(f"sources.{each.name}.rate", rate, "images/s"))
    return rows


def memory_rows(rounds: Sequence[Mapping[str, Run]], small: Mapping[str, Run]) -> list[Row]:
    """The peak of each kind, and how it grows with ten times the pictures."""
    rows = []
    for name, less in small.items():
        peak = median(_peak(runs[name]) for runs in rounds)
        rows += [
            Row(f"sources.{name}.peak_memory", peak, "GB"),
            Row(f"sources.{name}.memory_growth", peak / _peak(less), "ratio", "<= 1.2"),
        ]
    return rows


def large_rows(large: Mapping[str, tuple[Run, Run]]) -> list[Row]:
    """How memory grows with a thousand times the bytes."""
    rows = []
    for name, (less, more) in large.items():
        rows += [
            Row(f"sources.{name}.large_peak_memory", _peak(more), "GB"),
            Row(f"sources.{name}.large_memory_growth", _peak(more) / _peak(less), "ratio", "<= 1.2"),
        ]
    return rows


def _peak(result: Run) -> float:
    return result.peak_bytes / GIGABYTE


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


BENCHMARK = Benchmark("sources", "every kind of source against plain files", add_arguments, run)
