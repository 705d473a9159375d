"""Shows a person how far a build is: a bar on a terminal, a plain line now and then in a log.

Workers are other processes or other machines, so the numbers come from what they leave in the build folder: receipts
of finished shards and the running counts of the others.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.workspace.layout import BuildFolder, load_plan, load_receipt

_POLL_SECONDS, _LINE_SECONDS = 0.5, 5.0


@dataclass(frozen=True)
class Status:
    """The state of a build at one moment; `total` is None until all inputs are listed, and looked at for duplicates."""

    total: int | None
    done: int = 0
    rejected: int = 0
    listed: int = 0
    looked: int = 0

    @property
    def stage(self) -> str:
        """What the workers are at."""
        if self.total is not None:
            return "building"
        return "looking for duplicates" if self.looked else "listing"


class Watch:
    """Adds up what the workers have left so far; a finished shard is read once."""

    def __init__(self, folder: BuildFolder) -> None:
        """Looks at one build folder."""
        self._folder = folder
        self._total: int | None = None
        self._finished: dict[str, tuple[int, int]] = {}

    def status(self) -> Status:
        """The counts now."""
        if self._total is None and self._folder.plan.exists():
            self._total = load_plan(self._folder.plan).images
        if self._total is None:
            return Status(None, listed=sum(self._counts("listing")), looked=sum(self._counts("looking")))
        for path in (self._folder.state / "receipts").glob("*.json"):
            if path.stem not in self._finished:
                with suppress(FileNotFoundError):  # an interrupted run's, whose shard is being written again
                    receipt = load_receipt(path)
                    self._finished[path.stem] = (receipt.listed, sum(receipt.rejected.values()))
        counts = [*self._finished.values(), *self._running()]
        done, rejected = (sum(column) for column in zip((0, 0), *counts, strict=True))
        return Status(self._total, done, rejected, listed=self._total)

    def _counts(self, stage: str) -> Iterator[int]:
        for path in (self._folder.work / stage).glob("*"):
            yield int((path.read_text().split() or ["0"])[0])  # nothing: the worker is writing it at this very moment

    def _running(self) -> Iterator[tuple[int, int]]:
        for path in (self._folder.work / "progress").glob("*-*"):
            if path.name not in self._finished:
                counts = path.read_text().split()
                if len(counts) == 2:  # else the worker is writing it at this very moment
                    yield int(counts[0]), int(counts[1])


@contextmanager
def show_progress(folder: BuildFolder, stream: TextIO) -> Iterator[None]:
    """Reports on a build until the block ends."""
    stop = threading.Event()
    console = Console(file=stream)
    show = _show_bar if console.is_terminal else _show_lines
    thread = threading.Thread(target=show, args=(Watch(folder), stop, console), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _show_bar(watch: Watch, stop: threading.Event, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.fields[of]} inputs  {task.fields[rate]} inputs/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rejected]} rejected"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("listing", total=None, of="?", rate="-", rejected=0)
        speed = Speed()
        while True:
            last_look = stop.wait(_POLL_SECONDS)
            status = watch.status()
            if status.total is not None:
                rate = f"{speed.update(status.done):,.0f}"
                progress.update(
                    task,
                    description=status.stage,
                    total=status.total,
                    completed=status.done,
                    of=f"{status.total:,}",
                    rate=rate,
                    rejected=f"{status.rejected:,}",
                )
            else:
                progress.update(task, description=status.stage, completed=status.looked or status.listed)
            if last_look:
                return


def _show_lines(watch: Watch, stop: threading.Event, console: Console) -> None:
    speed, next_line = Speed(), time.monotonic() + _LINE_SECONDS
    while True:
        last_look = stop.wait(_POLL_SECONDS)
        status = watch.status()
        rate = speed.update(status.done)
        if last_look or time.monotonic() >= next_line:
            next_line += _LINE_SECONDS
            print(progress_line(status, rate), file=console.file, flush=True)
        if last_look:
            return


def progress_line(status: Status, rate: float) -> str:
    """One line for a log."""
    if status.total is None:
        return f"{status.stage}: {status.looked or status.listed:,} inputs so far"
    percent = 100 * status.done / max(status.total, 1)
    done = f"building: {status.done:,}/{status.total:,} inputs ({percent:.0f} %), {status.rejected:,} rejected"
    return f"{done}, {rate:,.0f} inputs/s, ETA {(status.total - status.done) / rate:,.0f} s" if rate else done


class Speed:
    """Images per second since the first image was done."""

    def __init__(self) -> None:
        """Not started."""
        self._start: tuple[float, int] | None = None

    def update(self, done: int) -> float:
        """The mean rate up to now."""
        now = time.monotonic()
        if self._start is None:
            if done:
                self._start = (now, done)
            return 0.0
        then, before = self._start
        return (done - before) / max(now - then, 1e-9)
