"""How fast training gets its pictures: the trainer's input against others that read the same pictures, in turns.

Each contestant is a process with one iterator, which lives through all rounds. A round is timed to its last batch,
after some batches that were ready already; a ratio is taken inside a round, where the machine was equally busy.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml

from benchmarks import durable
from benchmarks.input_contestants import CASES, read_examples
from benchmarks.measure import ROOT, measure
from benchmarks.preprocess import find_jpegs
from benchmarks.report import Benchmark, Row
from shards.errors import ShardsmithError, UsageError

STORED, SIDE, BATCH, WINDOW = 256, 224, 128, 4096
READY = 8  # batches that may be waiting when a round begins
TARS = 16
OURS, PLAIN, BARE, TFDS = "ours", "plain", "bare", "tfds"
PEERS = ("webdataset", "grain")
TARGETS = {PLAIN: ">= 0.95", BARE: ">= 0.8", TFDS: ">= 1", "webdataset": ">= 1", "grain": ">= 1"}


@dataclass(frozen=True)
class Turn:
    """What some batches took: wall clock, and the CPU time of all processes of the contestant."""

    seconds: float
    cpu_seconds: float


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `input`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="any folder with JPEG files, at any depth")
    parser.add_argument("--images", type=int, default=12_000, help="pictures to make from these (12000)")
    parser.add_argument("--rounds", type=int, default=5, help="each round runs all contestants; medians are shown (5)")
    parser.add_argument("--records", type=int, default=2 * WINDOW, help=f"read in a round ({2 * WINDOW})")
    parser.add_argument(
        "--peers-python",
        metavar="PATH",
        type=Path,
        help="interpreter of an environment with the `benchmarks` extra: WebDataset and Grain compete too",
    )


def run(arguments: Namespace) -> list[Row]:
    """Measures and returns the rows."""
    check_numbers(arguments)
    peers = find_peers(arguments.peers_python)
    with tempfile.TemporaryDirectory(prefix="shardsmith_bench_") as name:
        folder = Path(name)
        make_dataset(arguments.folder, folder, images=arguments.images)
        if peers:
            write_tars(folder)
        rounds = {case: run_case(case, folder, arguments, peers) for case in CASES}
    rows = [
        row for case, turns in rounds.items() for row in case_rows(case, turns, records=_batches(arguments) * BATCH)
    ]
    return [Row("input.images", arguments.images, "images"), *rows]


def check_numbers(arguments: Namespace) -> None:
    """Refuses sizes that cannot be measured."""
    if arguments.rounds < 1:
        raise UsageError(f"--rounds {arguments.rounds}: at least 1 is needed")
    if arguments.images < BATCH:
        raise UsageError(f"--images {arguments.images}: at least {BATCH}, one batch, are needed")
    if arguments.records < BATCH:
        raise UsageError(f"--records {arguments.records}: at least {BATCH}, one batch, are needed")


def find_peers(python: Path | None) -> dict[str, list[str]]:
    """The commands of those peers that an interpreter can import: the given one, or this one."""
    interpreter = str(python or sys.executable)
    found = {}
    for name, modules in {"webdataset": "torch, webdataset, cv2", "grain": "grain, array_record, cv2"}.items():
        try:
            result = subprocess.run(
                [interpreter, "-c", f"import {modules}"], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UsageError(f"--peers-python {python}: {error.strerror}") from error
        if result.returncode == 0:
            found[name] = [interpreter, str(ROOT / "benchmarks/input_peers.py")]
        else:
            last = (result.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
            _say(f"{name} is left out: {last}; install the `benchmarks` extra elsewhere and name its --peers-python")
    return found


def make_dataset(photos: Path, folder: Path, *, images: int) -> None:
    """Makes pictures of the photographs, each another, and builds a dataset of them as a user does."""
    originals = find_jpegs(photos, limit=durable.ORIGINALS, side=durable.SIDE)
    durable.Bench(folder, images).make_pictures(originals, 0, images)
    config = folder / "build.yaml"
    values = {
        "source": str(folder / "raw"),
        "output": str(folder / "data"),
        "image": {"resize": f"center_crop:{STORED}"},
        "splits": {"fractions": {"train": 1.0}},
        "shards": {"target_mb": 16},
    }
    config.write_text(yaml.safe_dump(values))
    built = measure([sys.executable, "-m", "pipelines", "build", str(config)])
    _say(f"{images:,} pictures of {STORED}x{STORED} built in {built.seconds:.0f} s")


def write_tars(folder: Path) -> None:
    """The same pictures as tar files, for the peers."""
    (folder / "tars").mkdir()
    with ExitStack() as stack:
        names = [folder / "tars" / f"{number:02}.tar" for number in range(TARS)]
        tars = [stack.enter_context(tarfile.open(name, "w")) for name in names]
        for number, (label, picture) in enumerate(read_examples(folder / "data")):
            for suffix, data in (("jpg", picture), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:07}.{suffix}")
                member.size = len(data)
                tars[number % TARS].addfile(member, io.BytesIO(data))


class Contestant:
    """A process that reads batches when it is told to."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts it, and returns when its first batch is there."""
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        while self._answer() != "ready":  # libraries greet on stdout
            pass

    def take(self, batches: int) -> Turn:
        """Reads so many batches."""
        self._ask(READY)
        before = self._cpu_seconds()
        seconds = self._ask(batches)
        return Turn(seconds, self._cpu_seconds() - before)

    def close(self) -> None:
        """Ends the process and what it has started."""
        running = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for child in running:
            if child.is_running():
                child.kill()
        self._log.close()

    def _ask(self, batches: int) -> float:
        assert self._process.stdin
        self._process.stdin.write(f"{batches}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = "\n".join(self._log.read().splitlines()[-15:])
            raise ShardsmithError(f"{' '.join(map(str, self._process.args))} ended early:\n{last}")  # type: ignore[arg-type]
        return line.strip()

    def _cpu_seconds(self) -> float:
        whole = psutil.Process(self._process.pid)
        return sum(_cpu(process) for process in (whole, *whole.children(recursive=True)))


def _cpu(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def run_case(case: str, folder: Path, arguments: Namespace, peers: Mapping[str, list[str]]) -> list[dict[str, Turn]]:
    """All rounds of a case; the order of the contestants turns from round to round."""
    with ExitStack() as stack:
        contestants = {}
        for name, command in commands(case, folder, peers):
            contestants[name] = Contestant(command)
            stack.callback(contestants[name].close)
        return [
            run_round(contestants, f"{case}, round {number} of {arguments.rounds}", batches=_batches(arguments))
            for number in range(1, arguments.rounds + 1)
        ]


def commands(case: str, folder: Path, peers: Mapping[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and command of each contestant."""
    numbers = [str(number) for number in (SIDE, BATCH, WINDOW)]
    for name in (OURS, PLAIN, BARE, TFDS):
        module = [sys.executable, "-m", "benchmarks.input_contestants"]
        yield name, [*module, name, case, str(folder / "data"), *numbers]
    for name, command in peers.items():
        yield name, [*command, name, case, str(folder / "tars"), *numbers]


def run_round(contestants: Mapping[str, Contestant], title: str, *, batches: int) -> dict[str, Turn]:
    """One turn of each."""
    turns = {}
    for name, contestant in contestants.items():
        turns[name] = contestant.take(batches)
        rate, cost = batches * BATCH / turns[name].seconds, turns[name].cpu_seconds / (batches * BATCH) * 1e6
        _say(f"{title}: {name} {rate:,.0f} records/s, {cost:,.0f} CPU-us each")
    return turns


def case_rows(case: str, rounds: Sequence[Mapping[str, Turn]], *, records: int) -> list[Row]:
    """Ours against each of the others, then the numbers behind the ratios."""
    rows = []
    for other in rounds[0]:
        if other != OURS:
            wall = median(turns[other].seconds / turns[OURS].seconds for turns in rounds)
            cpu = median(turns[other].cpu_seconds / turns[OURS].cpu_seconds for turns in rounds)
            # Only a crop of a fixed size has no more to do than to decode.
            target = None if other == BARE and case != "crop" else TARGETS[other]
            rows += [
                Row(f"input.{case}.vs_{other}", wall, "ratio", target),
                Row(f"input.{case}.vs_{other}_cpu", cpu, "ratio"),
            ]
    for name in rounds[0]:
        rate = median(records / turns[name].seconds for turns in rounds)
        rows.append(Row(f"input.{case}.rate.{name}", rate, "records/s"))
    return rows


def _batches(arguments: Namespace) -> int:
    return int(arguments.records) // BATCH


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


BENCHMARK = Benchmark(
    "input", "training's input against plain tf.data, bare decoding, TFDS and others", add_arguments, run
)
