"""The parts of `benchmarks durable` that could quietly measure something else."""

from dataclasses import replace
from pathlib import Path

import pytest
import simplejpeg
from pictures import encoded, picture

from benchmarks.__main__ import main
from benchmarks.durable import Bench, done_fraction, make_picture, ratio_rows
from benchmarks.measure import Run
from pipelines.planning.plan import Plan, SplitPlan
from pipelines.workspace.layout import BuildFolder, load_receipts, save_plan, save_receipt
from shards.errors import UsageError


def test_every_picture_is_another_and_the_same_each_time(tmp_path):
    original = tmp_path / "original.jpg"
    original.write_bytes(encoded(picture(1, size=(900, 700)), "jpeg"))
    for number in range(6):
        make_picture(str(original), number, str(tmp_path / f"{number}.jpg"))
    make_picture(str(original), 3, str(tmp_path / "again.jpg"))
    made = [(tmp_path / f"{number}.jpg").read_bytes() for number in range(6)]
    assert len(set(made)) == 6
    assert made[3] == (tmp_path / "again.jpg").read_bytes()
    assert {min(simplejpeg.decode_jpeg_header(data)[:2]) for data in made} == {480}


def test_the_pictures_lie_in_class_folders(tmp_path):
    original = tmp_path / "original.jpg"
    original.write_bytes(encoded(picture(1, size=(600, 600)), "jpeg"))
    Bench(tmp_path, 20).make_pictures([str(original)], 0, 20)
    found = sorted(path.relative_to(tmp_path / "raw").as_posix() for path in (tmp_path / "raw").rglob("*.jpg"))
    assert found == sorted(f"class_{number % 10}/{number:07d}.jpg" for number in range(20))


def test_ratios_are_to_the_build():
    runs = {name: Run(seconds, 0, 0) for name, seconds in {"build": 100, "noop": 4, "resume": 70, "append": 9}.items()}
    rows = ratio_rows(runs | {"exact": Run(110, 0, 0), "near": Run(160, 0, 0)})
    assert [(row.name, row.value, row.ok) for row in rows] == [
        ("durable.noop.vs_build", 0.04, True),
        ("durable.resume.vs_build", 0.7, False),
        ("durable.append.vs_build", 0.09, True),
        ("durable.exact.vs_build", 1.1, True),
        ("durable.near.vs_build", 1.6, False),
    ]


def test_how_much_is_done_is_counted_by_receipts(built, tmp_path):
    receipts = load_receipts(BuildFolder(built.root))
    folder = BuildFolder(tmp_path)
    assert done_fraction(folder) == 0
    (tmp_path / "state" / "receipts").mkdir(parents=True)
    save_plan(Plan((), {}, (SplitPlan("train", 80, 0, 0, (0,)),)), folder.plan)
    assert done_fraction(folder) == 0
    save_receipt(replace(receipts[0], listed=20), folder.receipt(receipts[0].shard))
    assert done_fraction(folder) == 0.25


def test_too_few_pictures_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"^--images 999: at least 1000 are needed$"):
        main(["durable", str(tmp_path), "--images", "999"])
