"""The Beam wiring: transforms under TestPipeline, what the shuffle carries, and the same bytes in every local mode."""

from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import execution
from apache_beam.testing.test_pipeline import TestPipeline as BeamTestPipeline
from apache_beam.testing.util import assert_that, equal_to
from conftest import make_config, make_ref
from pictures import encoded, picture, write_class_folders
from PIL import Image

from pipelines.config import BuildConfig
from pipelines.inputs.coders import InputRefCoder
from pipelines.pipeline import ListInputs, PlanShards, WriteShards, key_by_shard
from pipelines.planning.dealing import DealSplits
from pipelines.planning.listing import Listing
from pipelines.planning.plan import make_plan
from pipelines.planning.splits import deal
from pipelines.runner import parse_beam_options, run_build
from pipelines.values import Fault, InputRef, Location
from pipelines.workspace.layout import BuildFolder, load_plan
from shards.files import hash_file
from shards.settings import validate

LOCAL = PipelineOptions(["--runner=FnApiRunner"])


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    root = write_class_folders(tmp_path_factory.mktemp("raw"), classes=("ant", "bee", "cow"), images=12)
    (root / "ant" / "cut.jpg").write_bytes(encoded(picture(1))[:200])
    return root


def test_list_images_yields_a_ref_per_file(raw):
    with BeamTestPipeline(options=LOCAL) as pipeline:
        refs = pipeline | ListInputs(make_config(raw, "out"))
        keys = refs | beam.Map(lambda ref: (ref.labels[0], ref.key))
        counts = refs | beam.Map(lambda ref: ref.labels[0]) | beam.combiners.Count.PerElement()
        expected = [("ant", "ant/cut.jpg")]
        for label in ("ant", "bee", "cow"):
            expected += [(label, f"{label}/{n:03d}.jpg") for n in range(12) if n % 3]
            expected += [(label, f"{label}/deep/{n:03d}.png") for n in range(0, 12, 3)]
        assert_that(keys, equal_to(expected), label="keys")
        assert_that(counts, equal_to([("ant", 13), ("bee", 12), ("cow", 12)]), label="counts")


def test_plan_shards_equals_the_pure_plan_and_is_stored(raw, tmp_path):
    config = make_config(raw, tmp_path, shards={"count": 2})
    path = tmp_path / "work" / "plan.json"
    path.parent.mkdir()
    refs = [deal(make_ref(f"k{n}", "ab"[n % 2], size=1000 + n), config.splits) for n in range(50)]
    listing = Listing()
    for ref in refs:
        listing.add(ref, config)
    expected = make_plan(listing, config)
    with BeamTestPipeline(options=LOCAL) as pipeline:
        plan = pipeline | beam.Create(refs) | PlanShards(config, path)
        assert_that(plan, equal_to([expected]))
    assert load_plan(path) == expected


def test_every_ref_is_keyed_by_its_planned_shard():
    config = make_config("raw", "out", shards={"count": 3})
    refs = [deal(make_ref(f"k{n}", "a", size=1000), config.splits) for n in range(200)]
    listing = Listing()
    for ref in refs:
        listing.add(ref, config)
    plan = make_plan(listing, config)
    numbers = {next(key_by_shard(ref, plan))[0] for ref in refs}
    assert numbers == set(range(9))  # 3 splits of 3 shards
    assert all(next(key_by_shard(ref, plan))[1] is ref for ref in refs)


def test_write_shards_returns_a_receipt_per_shard(raw, tmp_path):
    config = make_config(raw, tmp_path / "out", shards={"count": 2}, splits={"fractions": {"train": 1.0}})
    folder = BuildFolder(tmp_path / "out")
    folder.prepare(anew=False)
    with BeamTestPipeline(options=LOCAL) as pipeline:
        refs = pipeline | ListInputs(config) | DealSplits(config)
        plan = refs | PlanShards(config, folder.plan)
        receipts = refs | WriteShards(config, beam.pvalue.AsSingleton(plan), 2)
        told = receipts | beam.Map(lambda r: (r.split, r.index, r.listed == r.records + sum(r.rejected.values())))
        totals = receipts | beam.Map(lambda r: r.listed) | beam.CombineGlobally(sum)
        assert_that(told, equal_to([("train", 0, True), ("train", 1, True)]), label="receipts")
        assert_that(totals, equal_to([37]), label="everything is read")


@pytest.mark.parametrize(
    "ref",
    [
        make_ref("k", "l", "/x", 5),
        InputRef(
            "k\udcff",
            Location("/x\udcff", 2**40, 7, 3, "deflate", "|u1:2,2"),
            ("é", "b"),
            (1.5,),
            "train",
            "g",
            (1, 2.5, "text", (1, 2)),
            ((0.0, 1.0, 2.0, 3.0),),
            2,
            Fault("bad_row", "why"),
        ),
    ],
)
def test_the_ref_coder_round_trips_and_is_small(ref):
    coder = InputRefCoder()
    assert coder.decode(coder.encode(ref)) == ref
    assert type(coder.decode(coder.encode(ref)).fault) is type(ref.fault)
    assert type(coder.decode(coder.encode(ref)).location) is Location
    assert len(coder.encode(ref)) < 250
    assert isinstance(beam.coders.registry.get_coder(InputRef), InputRefCoder)


def test_only_references_go_between_the_steps(tmp_path, monkeypatch):
    """Weighs what the runner really carries, in its shuffle and between stages, while it builds from large files."""
    source = tmp_path / "raw" / "noise"
    source.mkdir(parents=True)
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (200, 200, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(source / f"{number}.png")
    smallest = min(path.stat().st_size for path in source.iterdir())
    assert smallest > 100_000
    carried: dict[str, list[int]] = {"shuffle": [], "stages": []}
    for name, buffer in (("shuffle", execution.GroupingBuffer), ("stages", execution.ListBuffer)):
        monkeypatch.setattr(buffer, "append", _weighing(buffer.append, carried[name]))
    config = make_config(tmp_path / "raw", tmp_path / "out", image={"encode": {"format": "original"}})
    BuildFolder(tmp_path / "out").prepare(anew=False)
    assert run_build(config, options=LOCAL).images == 6
    assert sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.tfrecord")) > 6 * smallest
    assert sum(carried["shuffle"]) > 6 * 50  # the tap saw the shuffle of six references
    assert sum(carried["shuffle"]) < 6 * 1_000
    assert sum(carried["stages"]) < smallest / 4


def _weighing(append, sizes):
    def weigh(self, data):
        sizes.append(len(data))
        append(self, data)

    return weigh


@pytest.fixture(scope="module")
def reference_bytes(raw, tmp_path_factory):
    return build_bytes(raw, tmp_path_factory.mktemp("reference"))


def build_bytes(raw: Path, base: Path, *arguments: str) -> dict[str, str]:
    """The sha256 of everything that the job writes for keeps."""
    config = make_config(raw, base / "out", image={"resize": "center_crop:24"}, shards={"target_mb": 0.004})
    BuildFolder(base / "out").prepare(anew=False)
    run_build(config, options=parse_beam_options(arguments, ours=()))
    paths = [p for p in (base / "out").rglob("*") if p.is_file() and ".build" not in p.parts]
    return {str(path.relative_to(base / "out")): hash_file(path) for path in paths}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--direct_running_mode=in_memory"],
        ["--direct_running_mode=multi_threading", "--direct_num_workers=3"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=3"],
        ["--runner=DirectRunner"],
    ],
    ids=["in_memory", "threads-3", "processes-2", "processes-3", "direct-runner"],
)
def test_every_mode_writes_the_same_bytes(arguments, raw, reference_bytes, tmp_path):
    assert sum(name.endswith(".tfrecord") for name in reference_bytes) >= 6
    assert sum(name.startswith("rejected/") for name in reference_bytes) == 1
    assert build_bytes(raw, tmp_path, *arguments) == reference_bytes


def test_a_file_that_two_sources_name_is_a_duplicate_for_the_second(raw, tmp_path):
    (tmp_path / "link").symlink_to(raw)  # another path to the same files
    sources = [{"name": "first", "path": f"{raw}/*/*.jpg"}, {"name": "second", "path": str(tmp_path / "link")}]
    config = validate(BuildConfig, {"sources": sources, "output": "out"}, place="the test")
    with BeamTestPipeline(options=LOCAL) as pipeline:
        refs = pipeline | ListInputs(config)
        counts = refs | beam.Map(lambda ref: (ref.source, ref.fault)) | beam.combiners.Count.PerElement()
        told = Fault("listed_twice", "source 'first' names the same input; it is in the dataset once")
        # Of the 37 files the first source names those that are JPEGs and lie directly in the class folders.
        assert_that(counts, equal_to([((0, None), 25), ((1, told), 25), ((1, None), 12)]))
