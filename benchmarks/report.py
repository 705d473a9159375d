"""What a benchmark is and how its numbers are shown: a table, JSON lines, or the README's own table made from those."""

import json
import math
import operator
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shards.errors import UsageError

START, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
KEYS = ("name", "value", "unit", "target", "ok")
HEADER = ("benchmark", "value", "target", "met")
_COMPARISONS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Row:
    """One number, and the target that it should meet, such as `>= 0.8`."""

    name: str
    value: float
    unit: str
    target: str | None = None

    def __post_init__(self) -> None:
        """A target that cannot be read is found here, not after an hour of measuring."""
        if self.target is not None:
            parse_target(self.target)

    @property
    def ok(self) -> bool | None:
        """Whether the value meets the target; None without one."""
        if self.target is None:
            return None
        comparison, bound = parse_target(self.target)
        return bool(_COMPARISONS[comparison](self.value, bound))

    def to_json(self) -> str:
        """The row as one line."""
        value = shorten(self.value, digits=4)
        return json.dumps(dict(zip(KEYS, (self.name, value, self.unit, self.target, self.ok), strict=True)))

    def cells(self) -> tuple[str, str, str, str]:
        """Name, value with unit, target and verdict, as people read them."""
        verdict = {True: "yes", False: "no", None: ""}[self.ok]
        return self.name, f"{shorten(self.value, digits=3):,} {self.unit}", self.target or "", verdict


@dataclass(frozen=True)
class Benchmark:
    """A command of `python -m benchmarks`: its options, and the function that measures."""

    name: str
    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], list[Row]]


def parse_target(target: str) -> tuple[str, float]:
    """Splits `>= 0.8` into comparison and number."""
    comparison, _, bound = target.partition(" ")
    if comparison not in _COMPARISONS:
        raise ValueError(f"target {target!r} is not of the form '>= 0.8' or '<= 1.2'")
    return comparison, float(bound)


def shorten(value: float, *, digits: int) -> int | float:
    """The value with so many significant digits, but all those before the point; whole numbers are ints."""
    if not math.isfinite(value) or value == 0:
        return value
    short = round(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))
    return int(short) if short == int(short) else short


def print_rows(rows: Iterable[Row], *, title: str, as_json: bool) -> None:
    """Prints to stdout: a table for people, or one JSON object per line."""
    if as_json:
        for row in rows:
            print(row.to_json())
        return
    table = Table(title=title, title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="right" if name == "value" else "left")
    for row in rows:
        table.add_row(*row.cells())
    Console().print(table)


def read_rows(path: Path) -> list[Row]:
    """Reads what `--json` printed; the verdict is made anew from value and target."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    rows = [_read_row(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UsageError(f"{path} has no rows; make it with: python -m benchmarks preprocess DIR --json > {path}")
    return rows


def _read_row(line: str, place: str) -> Row:
    try:
        values = json.loads(line)
        return Row(values["name"], float(values["value"]), values["unit"], values["target"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{place}: not a row that `--json` prints: {error}") from error


def markdown_table(rows: Sequence[Row]) -> str:
    """The rows as a GitHub table."""
    cells = [HEADER, ("---", "---:", "---", "---"), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def replace_table(text: str, rows: Sequence[Row], *, place: str) -> str:
    """The text with the table between its two markers replaced."""
    head, start, rest = text.partition(START)
    _, end, tail = rest.partition(END)
    if not (start and end):
        raise UsageError(f"{place} has no {START} ... {END}; put these two lines where the table should stand")
    return f"{head}{start}\n{markdown_table(rows)}\n{end}{tail}"
