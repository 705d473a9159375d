"""What it costs to keep a dataset: to prove, resume, append, deduplicate and verify, against building it anew.

All times are of whole commands, start-up included, as a person waits for them. The pictures are crops of the given
ones, each another, so that duplicates are as rare as in life.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import yaml

from benchmarks.durable_verify import measure_verify, write_dataset
from benchmarks.measure import ROOT, Run, measure
from benchmarks.preprocess import CLASSES, find_jpegs
from benchmarks.report import Benchmark, Row
from pipelines.workspace.layout import BuildFolder, load_plan, load_receipts
from shards.errors import ShardsmithError, UsageError

ORIGINALS = 200  # held in memory while pictures are made from them
SIDE, STORED = 480, 224
VERIFIED_SHARDS = 32
_QUALITY = 90
_TARGETS = {"noop": "<= 0.05", "resume": "<= 0.6", "append": "<= 0.1", "exact": "<= 1.15", "near": "<= 1.5"}


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `durable`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="any folder with JPEG files, at any depth")
    parser.add_argument("--images", type=int, default=50_000, help="pictures to make from these and to build (50000)")
    parser.add_argument("--verify-megabytes", type=int, default=4000, help="size of the dataset to verify (4000)")


def run(arguments: Namespace) -> list[Row]:
    """Measures and returns the rows."""
    if arguments.images < 100 * CLASSES:
        raise UsageError(f"--images {arguments.images}: at least {100 * CLASSES} are needed")
    originals = find_jpegs(arguments.folder, limit=ORIGINALS, side=SIDE)
    with tempfile.TemporaryDirectory(prefix="shardsmith_bench_") as folder:
        bench = Bench(Path(folder), arguments.images)
        bench.make_pictures(originals, 0, arguments.images)
        runs = bench.run_builds()
        bench.make_pictures(originals, arguments.images, arguments.images + arguments.images // 100)
        runs["append"] = bench.command("append", "plain")
        write_dataset(bench.output("large"), megabytes=arguments.verify_megabytes, shards=VERIFIED_SHARDS)
        speed = measure_verify(bench.output("large"))
    rows = [Row("durable.images", arguments.images, "images"), Row("durable.build", runs["build"].seconds, "s")]
    rows += ratio_rows(runs)
    return [
        *rows,
        Row("durable.verify.vs_disk", speed.ratio_from_disk, "ratio", ">= 0.5"),
        Row("durable.verify.vs_page_cache", speed.ratio, "ratio", ">= 0.5"),
        Row("durable.verify.vs_hashing", speed.ratio_to_hashing, "ratio"),
        Row("durable.verify.rate", speed.verify, "MB/s"),
    ]


def ratio_rows(runs: Mapping[str, Run]) -> list[Row]:
    """Each command's time relative to the build's."""
    whole = runs["build"].seconds
    return [Row(f"durable.{name}.vs_build", runs[name].seconds / whole, "ratio", _TARGETS[name]) for name in _TARGETS]


@dataclass(frozen=True)
class Bench:
    """Where the benchmark works."""

    folder: Path
    images: int

    def output(self, name: str) -> Path:
        """The dataset of one contestant."""
        return self.folder / name

    def make_pictures(self, originals: Sequence[str], first: int, end: int) -> None:
        """Writes the pictures of these numbers into class folders."""
        for number in range(CLASSES):
            (self.folder / "raw" / f"class_{number}").mkdir(parents=True, exist_ok=True)
        jobs = [(originals[number % len(originals)], number, self._path(number)) for number in range(first, end)]
        jobs.sort()  # by original, so that each is decoded once
        with get_context("spawn").Pool() as pool:
            pool.starmap(make_picture, jobs, chunksize=max(1, len(jobs) // 64))

    def _path(self, number: int) -> str:
        return str(self.folder / "raw" / f"class_{number % CLASSES}" / f"{number:07d}.jpg")

    def run_builds(self) -> dict[str, Run]:
        """The build, and everything that is compared with it but the append, which needs other pictures."""
        runs = {"build": self.command("build", "plain"), "noop": self.command("build", "plain")}
        self.kill_build_halfway()
        runs["resume"] = self.command("build", "killed")
        for find in ("exact", "near"):
            runs[find] = self.command("build", find, dedupe=find)
            shutil.rmtree(self.output(find))
        return runs

    def arguments(self, command: str, name: str, **settings: object) -> list[str]:
        """The command line for one contestant."""
        config = self.folder / f"{name}.yaml"
        values = {
            "source": str(self.folder / "raw"),
            "output": str(self.output(name)),
            "image": {"resize": f"center_crop:{STORED}"},
            "shards": {"target_mb": 16},
        }
        config.write_text(yaml.safe_dump(values | settings))
        return [sys.executable, "-m", "pipelines", command, str(config)]

    def command(self, command: str, name: str, **settings: object) -> Run:
        """Runs a command to its end."""
        result = measure(self.arguments(command, name, **settings))
        print(f"{name}: {command} took {result.seconds:.1f} s", file=sys.stderr, flush=True)
        return result

    def kill_build_halfway(self) -> None:
        """Starts a build and kills it, workers and all, when half of the inputs are in finished shards."""
        process = subprocess.Popen(
            self.arguments("build", "killed"),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        folder = BuildFolder(self.output("killed"))
        while done_fraction(folder) < 0.5:
            if process.poll() is not None:
                raise ShardsmithError("the build ended before it could be killed; take more --images")
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def done_fraction(folder: BuildFolder) -> float:
    """How much of a build's inputs are in finished shards."""
    if not folder.plan.exists():
        return 0.0
    return sum(receipt.listed for receipt in load_receipts(folder)) / load_plan(folder.plan).images


def make_picture(original: str, number: int, path: str) -> None:
    """A crop of the original, of another place and size for each number, mirrored or not."""
    chance = random.Random(number)
    pixels = _decode(original)
    height, width = (round(side * chance.uniform(0.4, 0.8)) for side in pixels.shape[:2])
    top, left = chance.randint(0, pixels.shape[0] - height), chance.randint(0, pixels.shape[1] - width)
    crop = pixels[top : top + height, left : left + width, :: chance.choice((1, -1))]
    scale = SIDE / min(height, width)
    crop = cv2.resize(crop, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_LINEAR)
    Path(path).write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(crop), _QUALITY))


@lru_cache(maxsize=1)  # whoever makes pictures gets all of one original in a row
def _decode(original: str) -> Any:
    return simplejpeg.decode_jpeg(Path(original).read_bytes(), "RGB")


BENCHMARK = Benchmark("durable", "resume, append, deduplicate, verify against a full build", add_arguments, run)
