"""What a person sees while a dataset is checked."""

import io

import pytest

from shards.progress import show_counts, show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_counts_of_bytes_and_of_files() -> None:
    assert show_counts(1_200_000_000, 6_000_000_000, "MB", seconds=4) == "1,200/6,000 MB (20 %), 300 MB/s"
    assert show_counts(7, 10, "files", seconds=0.5) == "7/10 files (70 %), 14 files/s"
    assert show_counts(0, 0, "MB", seconds=0) == "0/0 MB (0 %), 0 MB/s"


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0, 105.0, 106.0, 110.5, 111.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    with show_progress(100_000_000, "MB", stream) as tick:
        for _ in range(5):
            tick(10_000_000)
    assert stream.getvalue().splitlines() == [
        "verifying: 20/100 MB (20 %), 4 MB/s",
        "verifying: 40/100 MB (40 %), 4 MB/s",
    ]


def test_what_is_quick_leaves_no_line() -> None:
    stream = io.StringIO()
    with show_progress(10, "files", stream) as tick:
        tick(10)
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with show_progress(10_000_000, "MB", stream) as tick:
        tick(5_000_000)
        tick(5_000_000)
    assert "verifying" in stream.getvalue()
    assert "10/10 MB (100 %)" in stream.getvalue()
