"""Shows a person how far a check is: a bar on a terminal, a plain line now and then in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_SECONDS = 5.0


@contextmanager
def show_progress(total: int, unit: str, stream: TextIO) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with what was done since the last call: bytes if the unit is MB."""
    console = Console(file=stream)
    progress = Progress(
        TextColumn("verifying"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    task = progress.add_task("", total=total, counts="")
    started = next_line = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal done, next_line
        done, now = done + count, time.monotonic()
        counts = show_counts(done, total, unit, seconds=now - started)
        progress.update(task, completed=done, counts=counts)
        if not console.is_terminal and now >= next_line + _LINE_SECONDS:
            next_line = now
            print(f"verifying: {counts}", file=stream, flush=True)

    with progress:
        yield advance


def show_counts(done: int, total: int, unit: str, *, seconds: float) -> str:
    """Reads like `120/600 MB (20 %), 300 MB/s`."""
    scale = 1e6 if unit == "MB" else 1
    percent = 100 * done / max(total, 1)
    rate = done / scale / max(seconds, 1e-9)
    return f"{done / scale:,.0f}/{total / scale:,.0f} {unit} ({percent:.0f} %), {rate:,.0f} {unit}/s"
