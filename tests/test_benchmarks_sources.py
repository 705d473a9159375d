"""The sources benchmark: every packer makes a source that lists as it should, and a tiny run gives every number."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_config
from pictures import encoded, picture

from benchmarks import packing, sources
from benchmarks.measure import Run
from benchmarks.sources import CONTESTANTS, check_numbers, choose, comparison_rows, job_seconds, large_rows, memory_rows
from pipelines.config import BuildConfig
from pipelines.pictures.process import read_input
from pipelines.sources import check_sources, list_partition, partition_sources
from pipelines.values import InputRef
from shards.errors import UsageError

PICTURES = [encoded(picture(number, size=(16, 16))) for number in range(3)]
COUNT = 25


def list_all(config: BuildConfig, spool: Path) -> list[InputRef]:
    check_sources(config)
    return [ref for part in partition_sources(config) for ref in list_partition(part, config, str(spool))]


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda contestant: contestant.name)
def test_every_packer_makes_a_source_of_the_same_pictures(contestant, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    settings = contestant.pack(PICTURES, COUNT, place)
    config = make_config(settings.pop("path"), tmp_path / "out", source=settings)
    refs = list_all(config, tmp_path / "spool")
    assert [ref.fault for ref in refs] == [None] * COUNT
    assert len({ref.key for ref in refs}) == COUNT
    numbers = sorted(int(ref.labels[0].removeprefix("class_")) for ref in refs)
    assert numbers == sorted(number % packing.CLASSES for number in range(COUNT))
    payloads = {read_input(ref.location, config.image) for ref in refs}
    assert len(payloads) == len(PICTURES)
    if contestant.against == sources.FILES:
        assert payloads == set(PICTURES)


def test_large_sources_have_the_size_that_was_asked_for(tmp_path):
    settings = packing.pack_large_npz(0.001, 32, tmp_path)
    with np.load(settings["path"]) as arrays:
        assert arrays["data"].nbytes == pytest.approx(1e6, rel=0.01)
        assert len(arrays["labels"]) == len(arrays["data"])
        assert len({array.tobytes() for array in arrays["data"]}) > 100
    arguments = packing.describe_large_generator(0.001, 32)["arguments"]
    items = list(packing.yield_large(**arguments))
    assert sum(item["image"].nbytes for item in items) == pytest.approx(1e6, rel=0.01)


def run_of(write: float, *, peak: float = 1e9) -> Run:
    return Run(seconds=99, cpu_seconds=99, peak_bytes=int(peak), phases={"start": 5, "list": 1, "write": write})


def test_rates_leave_out_start_and_commit_and_are_compared_inside_a_round():
    rounds = [{"files": run_of(9), "tar": run_of(19)}, {"files": run_of(19), "tar": run_of(39)}]
    assert job_seconds(rounds[0]["files"]) == 10
    rows = {row.name: row for row in comparison_rows(choose(["tar"]), rounds, 3000)}
    assert rows["sources.tar.vs_files"].value == 0.5
    assert rows["sources.tar.vs_files"].ok is False
    assert rows["sources.files.rate"].value == 200
    assert "sources.files.vs_files" not in rows


def test_memory_is_compared_with_less_of_the_same():
    rows = {row.name: row.value for row in memory_rows([{"npz": run_of(1, peak=2e9)}], {"npz": run_of(1, peak=1e9)})}
    assert rows == {"sources.npz.peak_memory": 2.0, "sources.npz.memory_growth": 2.0}
    large = {row.name: row.value for row in large_rows({"python": (run_of(1, peak=1e9), run_of(1, peak=1.1e9))})}
    assert large["sources.python.large_memory_growth"] == pytest.approx(1.1)


def test_what_kinds_are_compared_with_comes_along():
    assert [each.name for each in choose(["idx", "csv"])] == ["files", "csv", "grey_bmp_files", "idx"]
    assert choose(None) == list(CONTESTANTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "--rounds 0: at least 1 is needed"),
        ({"images": 99}, "--images 99: at least 100 are needed"),
        ({"gigabytes": -1.0}, "--gigabytes -1.0 must not be negative"),
    ],
)
def test_numbers_that_cannot_be_measured_are_refused(change, message):
    with pytest.raises(UsageError) as caught:
        check_numbers(Namespace(**{"rounds": 1, "images": 100, "gigabytes": 0.0} | change))
    assert str(caught.value) == message


@pytest.mark.slow
def test_a_tiny_run_gives_every_number(tmp_path, capsys):
    for number, data in enumerate(PICTURES):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    arguments = Namespace(folder=tmp_path, images=100, rounds=1, only=["zip"], gigabytes=0.0)
    rows = {row.name: row.value for row in sources.run(arguments)}
    assert set(rows) == {
        "sources.images", "sources.zip.vs_files", "sources.files.rate", "sources.zip.rate", "sources.files.peak_memory",
        "sources.files.memory_growth", "sources.zip.peak_memory", "sources.zip.memory_growth",
    }  # fmt: skip
    assert all(value > 0 for value in rows.values())
    assert "zip: 100 pictures" in capsys.readouterr().err
