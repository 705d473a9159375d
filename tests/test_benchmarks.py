"""The benchmarks run for real, at a tiny size. Speed is never asserted: only that numbers are there and make sense."""

import json
import math
import mmap
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import psutil
import pytest
import simplejpeg

from benchmarks import __main__ as command_line
from benchmarks.bare import process_file, usable_files
from benchmarks.measure import ROOT, Run, measure, phase_seconds
from benchmarks.preprocess import (
    BARE,
    BUILD,
    TUTORIAL,
    Bench,
    Round,
    check_numbers,
    comparison_rows,
    find_jpegs,
    link_images,
    memory_rows,
    parse_side,
    watch_build,
)
from benchmarks.report import END, KEYS, START, Row, markdown_table, print_rows, read_rows, replace_table, shorten
from pipelines.config import ImageConfig
from pipelines.pictures.images import process_image
from shards.errors import ShardsmithError, UsageError

UNITS = {
    "preprocess.vs_bare": "ratio",
    "preprocess.vs_bare_cpu": "ratio",
    "preprocess.vs_tutorial": "ratio",
    "preprocess.vs_tutorial_cpu": "ratio",
    "preprocess.peak_memory": "GB",
    "preprocess.memory_growth": "ratio",
    "preprocess.images": "images",
    "preprocess.rate.build": "images/s",
    "preprocess.rate.bare": "images/s",
    "preprocess.rate.tutorial": "images/s",
    "preprocess.cpu_rate.build": "images/CPU-s",
    "preprocess.cpu_rate.bare": "images/CPU-s",
    "preprocess.cpu_rate.tutorial": "images/CPU-s",
    "preprocess.peak_memory.bare": "GB",
    "preprocess.peak_memory.tutorial": "GB",
    "machine.cores": "cores",
    "machine.memory": "GB",
}
TARGETS = {
    "preprocess.vs_bare": ">= 0.8",
    "preprocess.vs_bare_cpu": ">= 0.8",
    "preprocess.vs_tutorial": ">= 1.6",
    "preprocess.vs_tutorial_cpu": ">= 1.6",
    "preprocess.peak_memory": "<= 1.2",
    "preprocess.memory_growth": "<= 1.2",
}


def write_jpegs(folder: Path, count: int, *, height: int = 60, width: int = 80) -> Path:
    """Smooth pictures, so that they look like photographs to a codec."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, columns = np.mgrid[0:height, 0:width]
    for number in range(count):
        waves = [127 + 120 * np.sin((rows * (i + 1) + columns * (number + 1)) / 30) for i in range(3)]
        pixels = np.ascontiguousarray(np.stack(waves, axis=-1).astype(np.uint8))
        (folder / f"{number:03d}.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, 90, "RGB"))
    return folder


def benchmark(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_preprocess_for_real(tmp_path: Path) -> None:
    photos = write_jpegs(tmp_path / "photos", 24)
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xffnot a picture")
    (photos / "other.png").write_bytes(b"\x89PNG")
    result = benchmark("preprocess", photos, "--images", 60, "--resize", "center_crop:32", "--rounds", 1, "--json")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(tuple(row) == KEYS for row in rows)
    phases = {row["name"]: row["unit"] for row in rows if row["name"].startswith("preprocess.phase.")}
    assert {row["name"]: row["unit"] for row in rows} == UNITS | phases
    # Listing and writing so few may fall between two samples; start-up and tf.Transform cannot.
    assert {"preprocess.phase.start", "preprocess.phase.commit"} <= set(phases)
    assert set(phases.values()) == {"s"}
    assert {row["name"]: row["target"] for row in rows if row["target"]} == TARGETS
    assert all(math.isfinite(row["value"]) and row["value"] > 0 for row in rows)
    assert all(isinstance(row["ok"], bool) == (row["target"] is not None) for row in rows)
    assert "24 of 25 JPEG files" in result.stderr


def test_help_lists_benchmarks() -> None:
    result = benchmark("--help")
    assert result.returncode == 0
    assert "preprocess" in result.stdout
    assert "readme" in result.stdout


def test_no_jpeg_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "only.png").write_bytes(b"\x89PNG")
    result = benchmark("preprocess", tmp_path)
    assert result.returncode == 2
    assert "no JPEG" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("resize", ["exact:256", "center_crop", "center_crop:0", "center_crop:-3", "center_crop:2x3"])
def test_other_resizes_are_refused(resize: str) -> None:
    with pytest.raises(UsageError, match="center_crop:SIZE"):
        parse_side(resize)


@pytest.mark.parametrize(("images", "rounds"), [(19, 1), (-1, 1), (100, 0)])
def test_impossible_numbers_are_refused(images: int, rounds: int) -> None:
    with pytest.raises(UsageError, match="at least"):
        check_numbers(Namespace(images=images, rounds=rounds))


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        find_jpegs(tmp_path / "none", limit=10, side=32)


def test_jpegs_are_found_at_any_depth(tmp_path: Path) -> None:
    write_jpegs(tmp_path, 2)
    write_jpegs(tmp_path / "a" / "b", 3)
    assert len(find_jpegs(tmp_path, limit=100, side=32)) == 5
    assert len(find_jpegs(tmp_path, limit=3, side=32)) == 3


def test_links_repeat_originals_under_names_of_their_own(tmp_path: Path) -> None:
    originals = [str(path) for path in sorted(write_jpegs(tmp_path / "photos", 3).iterdir())]
    bench = Bench(tmp_path, images=50, side=32)
    link_images(originals, bench)
    links = sorted(bench.tree.glob("*/*.jpg"))
    assert len(links) == len({link.name for link in links}) == 50
    assert len({link.parent for link in links}) == 10
    assert {str(link.resolve()) for link in links} == set(originals)


@pytest.mark.parametrize("size", [(60, 80), (300, 411), (1031, 640), (200, 200)])
def test_bare_loop_does_the_same_work_as_a_build(tmp_path: Path, size: tuple[int, int]) -> None:
    (path,) = write_jpegs(tmp_path, 1, height=size[0], width=size[1]).iterdir()
    config = ImageConfig.model_validate({"resize": "center_crop:100"})
    assert process_file(str(path), 100) == process_image(path.read_bytes(), config).data


def test_usable_files_leaves_out_what_cannot_be_decoded(tmp_path: Path) -> None:
    good, cut = write_jpegs(tmp_path, 2).iterdir()
    cut.write_bytes(cut.read_bytes()[:400])
    assert usable_files([str(good), str(cut), str(tmp_path / "none.jpg")], 32) == [str(good)]


def test_phases_follow_the_build_folder(tmp_path: Path) -> None:
    output, watch = tmp_path / "output", watch_build(tmp_path / "output")
    seen = [watch()]
    (output / "state" / "receipts").mkdir(parents=True)
    seen.append(watch())
    (output / "state" / "plan.json").write_text(json.dumps({"splits": [{"starts": [0]}, {"starts": []}]}))
    seen.append(watch())
    (output / "state" / "receipts" / "train-00000.json").touch()
    seen.append(watch())
    assert seen == ["start", "list", "write", "commit"]


# What one run took, from fixed numbers.


def make_round(build: Run, *, bare_seconds: float = 8, tutorial_seconds: float = 20) -> Round:
    return Round({BUILD: build, BARE: Run(bare_seconds, 12, 10**8), TUTORIAL: Run(tutorial_seconds, 30, 10**9)})


def test_ratios_are_medians_over_rounds() -> None:
    rounds = [make_round(Run(seconds, 15, 10**9)) for seconds in (10, 5, 1000)]
    values = {row.name: row.value for row in comparison_rows(rounds)}
    assert values == {
        "preprocess.vs_bare": 0.8,
        "preprocess.vs_bare_cpu": 0.8,
        "preprocess.vs_tutorial": 2.0,
        "preprocess.vs_tutorial_cpu": 2.0,
    }


def test_growth_compares_peaks() -> None:
    large, small = Run(10, 15, 10**9), Run(3, 5, 8 * 10**8)
    values = {row.name: row.value for row in memory_rows([make_round(large)], small)}
    assert values == {"preprocess.peak_memory": 1.0, "preprocess.memory_growth": 1.25}
    assert len(memory_rows([make_round(large)], None)) == 1


# Rows and how they are shown.


@pytest.mark.parametrize(
    ("value", "target", "ok"),
    [
        (0.8, ">= 0.8", True),
        (0.79, ">= 0.8", False),
        (1.2, "<= 1.2", True),
        (1.3, "<= 1.2", False),
        (math.nan, ">= 0.8", False),
        (5, None, None),
    ],
)
def test_ok(value: float, target: str | None, ok: bool | None) -> None:
    assert Row("name", value, "ratio", target).ok is ok


@pytest.mark.parametrize("target", ["0.8", "> 0.8", ">=0.8", ">= much", ">= "])
def test_bad_target_is_found_at_once(target: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Row("name", 1, "ratio", target)


def test_json_line_has_exactly_the_keys() -> None:
    line = Row("a.b", 0.123456, "ratio", ">= 0.8").to_json()
    assert json.loads(line) == {"name": "a.b", "value": 0.1235, "unit": "ratio", "target": ">= 0.8", "ok": False}
    assert json.loads(Row("c", 12_000, "images").to_json())["target"] is None


@pytest.mark.parametrize(
    ("value", "short"), [(12345.6, 12346), (123.456, 123), (1.23456, 1.23), (0.00123456, 0.00123), (0, 0)]
)
def test_shorten(value: float, short: float) -> None:
    assert shorten(value, digits=3) == short


def test_table_and_json_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("preprocess.vs_bare", 0.9, "ratio", ">= 0.8"), Row("preprocess.rate.build", 1234.5, "images/s")]
    print_rows(rows, title="a machine", as_json=False)
    table = capsys.readouterr().out
    assert all(part in table for part in ("a machine", "preprocess.vs_bare", "0.9 ratio", ">= 0.8", "yes", "1,23"))
    print_rows(rows, title="a machine", as_json=True)
    assert capsys.readouterr().out.splitlines() == [row.to_json() for row in rows]


def test_markdown_table() -> None:
    rows = [Row("a", 0.81234, "ratio", ">= 0.8"), Row("b", 2, "GB", "<= 1.2"), Row("c", 12_000, "images")]
    assert markdown_table(rows).splitlines() == [
        "| benchmark | value | target | met |",
        "| --- | ---: | --- | --- |",
        "| a | 0.812 ratio | >= 0.8 | yes |",
        "| b | 2 GB | <= 1.2 | no |",
        "| c | 12,000 images |  |  |",
    ]


def test_readme_is_made_from_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme, lines, more = (tmp_path / name for name in ("README.md", "a.jsonl", "b.jsonl"))
    readme.write_text(f"# Title\n\n{START}\nold\n{END}\n\nafter\n")
    lines.write_text(Row("a", 1, "ratio", ">= 0.8").to_json() + "\n\n" + Row("m", 2, "cores").to_json() + "\n")
    more.write_text(Row("b", 3, "GB").to_json() + "\n" + Row("m", 2, "cores").to_json() + "\n")
    for _ in range(2):  # The second time changes nothing.
        assert command_line.main(["readme", str(lines), str(more), "--readme", str(readme)]) == 0
    table = markdown_table([Row("a", 1, "ratio", ">= 0.8"), Row("m", 2, "cores"), Row("b", 3, "GB")])
    assert readme.read_text() == f"# Title\n\n{START}\n{table}\n{END}\n\nafter\n"
    assert "3 rows" in capsys.readouterr().out


def test_readme_without_markers_is_refused() -> None:
    with pytest.raises(UsageError, match="put these two lines"):
        replace_table("# Title\n", [Row("a", 1, "GB")], place="README.md")


@pytest.mark.parametrize(
    "text", ["", "not json\n", '{"name": "a"}\n', "[1]\n", '{"name":"a","value":1,"unit":"s","target":"x"}']
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"rows\.jsonl"):
        read_rows(tmp_path / "rows.jsonl")


def test_missing_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_rows(tmp_path / "rows.jsonl")


# Measuring.


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_memory_of_a_child_is_seen() -> None:
    result = measure(python("import time; block = bytearray(b'x') * 200_000_000; time.sleep(1)"))
    assert 200e6 <= result.peak_bytes < 400e6
    assert result.seconds >= 1


def test_memory_shared_in_the_tree_counts_once() -> None:
    code = "import os, time; block = bytearray(b'x') * 200_000_000; os.fork(); time.sleep(1)"
    assert 200e6 <= measure(python(code)).peak_bytes < 380e6


TOUCH = "import mmap, sys, time; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); m.find(b'x')"


def test_a_file_that_others_have_mapped_counts_in_full_and_once(tmp_path: Path) -> None:
    file = tmp_path / "library"
    file.write_bytes(bytes(100_000_000))
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as neighbour:
        neighbour.find(b"x")
        twice = f"import os; os.fork(); {TOUCH}; time.sleep(1)"
        assert 100e6 <= measure([*python(twice), str(file)]).peak_bytes < 180e6


BURN = "import time\nwhile time.process_time() < 1: pass"


def test_cpu_of_a_grandchild_is_counted() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
    assert measure(python(code)).cpu_seconds >= 1


ORPHAN = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        block = bytearray(b"x") * 100_000_000
        while time.process_time() < 1: pass
        with open(sys.argv[1] + ".part", "w") as stream: stream.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".part", sys.argv[1])
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]): time.sleep(0.1)
"""


def test_an_orphan_is_counted_and_ended(tmp_path: Path) -> None:
    result = measure([*python(ORPHAN), str(tmp_path / "pid")])
    assert result.cpu_seconds >= 1
    assert result.peak_bytes >= 100e6
    assert result.seconds < 60
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_failure_tells_the_last_words() -> None:
    with pytest.raises(ShardsmithError, match="exit code 3:\nout of luck"):
        measure(python("import sys; print('out of luck'); sys.exit(3)"))


def test_phases_add_up_to_the_run() -> None:
    names = iter(["first"] * 3 + ["second"] * 1000)
    result = measure(python("import time; time.sleep(1)"), watch=lambda: next(names))
    assert set(result.phases) == {"first", "second"}
    # The first sample comes after the command has started, and on a busy machine some time after.
    assert 0.5 < sum(result.phases.values()) <= result.seconds


def test_phase_seconds() -> None:
    assert phase_seconds([(1.0, "a"), (2.0, "a"), (4.0, "b"), (5.0, "a")], 5.5) == {"a": 3.5, "b": 1.0}
