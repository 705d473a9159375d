"""The transform under TestPipeline: which files are read, who is marked, and that the order does not matter."""

import json
import random
import shutil
import tempfile
import zipfile
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline as BeamTestPipeline
from conftest import make_config, make_ref
from PIL import Image
from sklearn.datasets import load_sample_image
from test_update import examples_of, run_append, run_build

from pipelines.config import BuildConfig
from pipelines.dedupe import marking
from pipelines.dedupe.marking import MarkDuplicates
from pipelines.dedupe.sides import Found, read_found
from pipelines.inputs.coders import InputRefCoder
from pipelines.pictures.perceptual import FLAT
from pipelines.sources import list_partition, partition_sources
from pipelines.values import Before, Fault, InputRef, Location
from shards.errors import UsageError
from shards.verify import verify

LOCAL = PipelineOptions(["--runner=FnApiRunner"])


def photo(number: int) -> Image.Image:
    """One of several real photographs, cut from a large one."""
    left, top = 160 * (number % 4), 210 * (number // 4)
    return Image.fromarray(load_sample_image("china.jpg")).crop((left, top, left + 160, top + 210))


def save(path: Path, image: Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def ref_to(path: Path, label: str = "", **fields: object) -> InputRef:
    return make_ref(path.name, label, str(path), path.stat().st_size, **fields)


def store(ref: InputRef, folder: Path) -> None:
    path = folder / ref.key
    assert not path.exists(), "came out twice"
    path.write_bytes(InputRefCoder().encode(ref))


def run(refs: list[InputRef], config: BuildConfig, path: Path | None = None) -> dict[str, InputRef]:
    """The marked refs by key, which have to be unique."""
    with tempfile.TemporaryDirectory() as folder:
        with BeamTestPipeline(options=LOCAL) as pipeline:
            marked = pipeline | beam.Create(refs, reshuffle=False) | MarkDuplicates(config, 2, path)
            _ = marked | beam.Map(store, Path(folder))
        found = [InputRefCoder().decode(file.read_bytes()) for file in Path(folder).iterdir()]
    assert sorted(ref.key for ref in found) == sorted(ref.key for ref in refs)
    return {ref.key: ref for ref in found}


def faults(refs: dict[str, InputRef]) -> dict[str, Fault | None]:
    return {key: ref.fault for key, ref in sorted(refs.items())}


@pytest.fixture
def files(tmp_path: Path) -> list[InputRef]:
    """a, b and c have the same bytes; d has other bytes of the same size; e is of a size of its own."""
    for name, data in {"a": b"same", "b": b"same", "c": b"same", "d": b"else", "e": b"longer"}.items():
        (tmp_path / name).write_bytes(data)
    return [ref_to(tmp_path / name) for name in "abcde"]


def test_exact_finds_the_same_bytes(files, tmp_path):
    found = tmp_path / "duplicates.jsonl"
    marked = run(files, make_config("raw", "out", dedupe="exact"), found)
    same = Fault("duplicate", "it has the same bytes as a, which stays")
    assert faults(marked) == {"a": None, "b": same, "c": same, "d": None, "e": None}
    assert {key: ref.unit for key, ref in marked.items()} == {"a": "a", "b": "a", "c": "a", "d": "", "e": ""}
    assert read_found(found) == Found(clusters=1, members=3, dropped=2, conflicts=0)


def test_exact_reads_only_what_shares_its_size(files):
    marked = run(files, make_config("raw", "out", dedupe="exact"))
    assert [key for key, ref in sorted(marked.items()) if ref.content] == ["a", "b", "c", "d"]


def test_nothing_found_passes_everything(files, tmp_path):
    found = tmp_path / "duplicates.jsonl"
    assert run(files[3:], make_config("raw", "out", dedupe="exact"), found) == {ref.key: ref for ref in files[3:]}
    assert found.read_bytes() == b""


def test_members_of_archives_and_whole_files_can_be_equal(files, tmp_path):
    (tmp_path / "x.tar").write_bytes(b"....same....")
    member = make_ref("x", location=Location(str(tmp_path / "x.tar"), 4, 4))
    marked = run([files[0], member], make_config("raw", "out", dedupe="exact"))
    assert marked["x"].fault == Fault("duplicate", "it has the same bytes as a, which stays")


def test_a_compressed_member_and_a_whole_file_can_be_equal(tmp_path):
    content = save(tmp_path / "a.bmp", Image.new("RGB", (60, 40), (1, 2, 3))).read_bytes()
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/b.bmp", content)
    config = make_config(tmp_path / "x.zip", tmp_path / "out", dedupe="exact")
    (member,) = [ref for part in partition_sources(config) for ref in list_partition(part, config)]
    assert member.location.coding == "deflate"
    assert member.location.size < len(content)
    whole = make_ref("a", path=str(tmp_path / "a.bmp"), size=len(content))
    marked = run([whole, member._replace(key="b")], config)
    assert marked["b"].fault == Fault("duplicate", "it has the same bytes as a, which stays")


def test_what_cannot_be_read_or_is_faulty_passes(files):
    gone = make_ref("gone", path="/nowhere/gone", size=4)
    faulty = files[1]._replace(fault=Fault("bad_row", "why"))
    marked = run([files[0], gone, faulty], make_config("raw", "out", dedupe="exact"))
    assert faults(marked) == {"a": None, "gone": None, "b": Fault("bad_row", "why")}


def test_the_order_of_the_listing_does_not_matter(files):
    config = make_config("raw", "out", dedupe="exact")
    assert run(random.Random(3).sample(files, 5), config) == run(files, config)


def test_rows_of_features_have_exact_duplicates_only(tmp_path):
    (tmp_path / "rows").write_bytes(np.array([[1, 2], [3, 4], [1, 2]], "<f4").tobytes())
    rows = [make_ref(f"r{n}", location=Location(str(tmp_path / "rows"), 8, 8 * n, form="<f4:2")) for n in range(3)]
    marked = run(rows, make_config("raw", "out", dedupe="exact"))
    assert [key for key, ref in marked.items() if ref.fault] == ["r2"]
    with pytest.raises(Exception, match="rows of 2 features; set it to exact") as caught:
        run(rows, make_config("raw", "out", dedupe="near"))
    assert isinstance(caught.value, UsageError)


@pytest.fixture
def pictures(tmp_path: Path) -> list[InputRef]:
    """Two photographs, several copies of the first, two flat pictures, and something that is no picture."""
    first, second, third = photo(0), photo(1), photo(5)
    half = first.resize((80, 105), Image.Resampling.LANCZOS)
    turned = first.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    paths = [
        save(tmp_path / "first.png", first),
        save(tmp_path / "first_q30.jpg", first, quality=30),
        save(tmp_path / "first_small.jpg", half, quality=90),
        save(tmp_path / "first_turned.jpg", turned, quality=95, exif=exif),
        save(tmp_path / "second.jpg", second, quality=95),
        save(tmp_path / "third.jpg", third, quality=95),
        save(tmp_path / "flat_black.png", Image.new("RGB", (50, 50))),
        save(tmp_path / "flat_white.png", Image.new("RGB", (60, 50), "white")),
    ]
    (tmp_path / "third_cut.jpg").write_bytes(paths[5].read_bytes()[:-3000])
    (tmp_path / "what.jpg").write_bytes(b"no picture")
    (tmp_path / "zcopy.png").write_bytes(paths[0].read_bytes())
    names = [path.name for path in paths] + ["third_cut.jpg", "what.jpg", "zcopy.png"]
    return [ref_to(tmp_path / name) for name in names]


def test_near_finds_what_looks_alike(pictures):
    marked = run(pictures, make_config("raw", "out", dedupe="near"))
    alike = {key: fault for key, fault in faults(marked).items() if fault}
    assert sorted(alike) == ["first_q30.jpg", "first_small.jpg", "first_turned.jpg", "zcopy.png"]
    assert {fault.reason for key, fault in alike.items() if key != "zcopy.png"} == {"near_duplicate"}
    assert all(alike[key].message.startswith("it looks like first.png, which stays: ") for key in sorted(alike)[:3])
    assert alike["zcopy.png"] == Fault("duplicate", "it has the same bytes as first.png, which stays")
    assert {ref.look for ref in marked.values() if ref.key.startswith("flat")} == {FLAT}
    for undecodable in ("third_cut.jpg", "what.jpg"):
        assert marked[undecodable].content
        assert marked[undecodable].look == b""
    units = {ref.unit for ref in marked.values() if ref.key[:5] in ("first", "zcopy")}
    assert units == {"first.png"}


def test_the_distance_is_obeyed(pictures):
    marked = run(pictures, make_config("raw", "out", dedupe={"find": "near", "distance": 0}))
    assert marked["zcopy.png"].fault
    assert not marked["first_q30.jpg"].fault
    assert marked["first_q30.jpg"].unit == ""


def test_report_keeps_all_in_one_unit(pictures):
    marked = run(pictures, make_config("raw", "out", dedupe={"find": "near", "policy": "report"}))
    assert not any(ref.fault for ref in marked.values())
    assert sorted(key for key, ref in marked.items() if ref.unit == "first.png") == [
        "first.png",
        "first_q30.jpg",
        "first_small.jpg",
        "first_turned.jpg",
        "zcopy.png",
    ]


def test_members_of_a_group_follow_its_duplicates(files):
    refs = [files[0]._replace(group="g"), files[1]._replace(group="h"), files[3]._replace(group="h"), files[4]]
    marked = run(refs, make_config("raw", "out", dedupe="exact"))
    assert {key: ref.unit for key, ref in marked.items()} == dict.fromkeys("abd", "group\0g") | {"e": ""}


def old(ref: InputRef, split: str, **known: object) -> InputRef:
    return ref._replace(before=Before(split, 0, 1)._replace(**known))


def test_what_the_dataset_has_stays_and_binds_the_others(files):
    refs = [files[0], old(files[1], "test"), files[4]]
    marked = run(refs, make_config("raw", "out", dedupe={"find": "exact", "policy": "report"}))
    places = {key: (ref.unit, ref.dealt) for key, ref in marked.items()}
    assert places == {"a": ("b", "test"), "b": ("b", ""), "e": ("", "")}
    marked = run(refs, make_config("raw", "out", dedupe="exact"))
    assert faults(marked)["a"] == Fault("duplicate", "it has the same bytes as b, which stays")


def test_a_group_of_the_dataset_binds_duplicates_of_new_members(files):
    refs = [files[0]._replace(group="g"), files[1], old(files[4]._replace(group="g"), "test")]
    marked = run(refs, make_config("raw", "out", dedupe={"find": "exact", "policy": "report"}))
    assert {key: ref.dealt for key, ref in marked.items()} == {"a": "test", "b": "test", "e": ""}


def test_what_the_dataset_knows_is_not_looked_at_again(pictures):
    config = make_config("raw", "out", dedupe="near")
    first = run(pictures, config)
    again = []
    for ref in first.values():
        known = {"content": ref.content, "look": ref.look, "reason": ref.fault.reason if ref.fault else ""}
        elsewhere = ref.location._replace(path=f"/gone/{ref.key}")  # where nothing can be read
        again.append(old(make_ref(ref.key, location=elsewhere), "train", **known))
    assert faults(run(again, config)) == faults(first)


def test_an_input_that_is_gone_is_nobodys_duplicate(files):
    gone = InputRef("z", Location("", 4), before=Before("train", 0, 1, same=False, gone=True), dealt="train")
    marked = run([files[0], gone], make_config("raw", "out", dedupe="exact"))
    assert marked["z"] == gone


def test_refs_of_one_size_stream():
    refs = iter([make_ref(f"k{n}", size=4) for n in range(5)])
    found = marking.find_shared("4", refs)
    assert [next(found)[0].key, next(found)[0].key] == ["k0", "k1"]
    assert next(refs).key == "k2"  # not taken yet
    assert [(ref.key, wanted) for ref, wanted in found] == [("k3", True), ("k4", True)]
    alone = make_ref("x", size=4)
    assert list(marking.find_shared("4", [alone])) == [(alone, False)]


def lines_of(root: Path) -> dict[str, tuple[str, str]]:
    """The inputs that were left out, with reason and message."""
    rows = [json.loads(line) for path in (root / "rejected").glob("*.jsonl") for line in path.read_text().splitlines()]
    return {row["key"]: (row["reason"], row["message"]) for row in rows}


def splits_of(root: Path) -> dict[str, str]:
    """Every example's split, by key."""
    return {key: split for split, records in examples_of(root).items() for key in records}


def test_a_build_leaves_duplicates_out_and_an_append_keeps_to_it(tmp_path, capsys):
    raw = tmp_path / "raw"
    for number in range(8):
        save(raw / "photo" / f"{number}.jpg", photo(number), quality=95)
    save(raw / "photo" / "9_small.png", photo(3).resize((80, 105)))
    save(raw / "other" / "wrong.jpg", photo(5), quality=60)
    shutil.copy(raw / "photo" / "1.jpg", raw / "photo" / "1_copy.jpg")
    settings = {"splits": {"fractions": {"train": 0.6, "test": 0.4}}, "image": {"resize": "exact:16"}, "dedupe": "near"}
    config = make_config(raw, tmp_path / "out", **settings)
    manifest = run_build(config)
    assert (manifest.counts.listed, manifest.counts.written, manifest.counts.duplicates) == (11, 8, 3)
    assert manifest.counts.rejected == {}
    lines = lines_of(tmp_path / "out")
    assert lines["photo/1_copy.jpg"] == ("duplicate", "it has the same bytes as photo/1.jpg, which stays")
    assert lines["photo/9_small.png"][0] == lines["photo/5.jpg"][0] == "near_duplicate"
    assert lines["photo/5.jpg"][1].startswith("it looks like other/wrong.jpg, which stays: ")
    assert read_found(tmp_path / "out" / "duplicates.jsonl") == Found(clusters=3, members=6, dropped=3, conflicts=1)
    told = "duplicates: 3 clusters of 6 inputs, 3 left out; 1 cluster has conflicting labels; see "
    assert told + f"{tmp_path}/out/duplicates.jsonl" in capsys.readouterr().out
    assert verify(tmp_path / "out") == []
    before = splits_of(tmp_path / "out")

    (raw / "photo" / "0.jpg").rename(raw / "photo" / "00.jpg")  # as if one went and its copy came
    (raw / "photo" / "1.jpg").unlink()  # its copy takes its place
    save(raw / "another" / "7.png", photo(7))  # comes before by its key, but the dataset has the other
    manifest = run_append(config, allow_removals=True)
    after = splits_of(tmp_path / "out")
    assert (manifest.counts.written, manifest.counts.duplicates) == (8, 3)
    kept = set(before) - {"photo/0.jpg", "photo/1.jpg"}
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert set(after) - kept == {"photo/00.jpg", "photo/1_copy.jpg"}
    assert after["photo/1_copy.jpg"] == before["photo/1.jpg"]
    assert lines_of(tmp_path / "out")["another/7.png"][1].startswith("it looks like photo/7.jpg, which stays: ")
    assert verify(tmp_path / "out") == []


def test_what_is_reported_is_on_one_side_of_the_splits(tmp_path):
    raw = tmp_path / "raw"
    for number in range(6):
        save(raw / "photo" / f"{number}.jpg", photo(number), quality=95)
        save(raw / "photo" / f"{number}_again.jpg", photo(number), quality=50)
    dedupe = {"find": "near", "policy": "report"}
    config = make_config(raw, tmp_path / "out", splits={"fractions": {"train": 0.5, "test": 0.5}}, dedupe=dedupe)
    manifest = run_build(config)
    assert (manifest.counts.written, manifest.counts.duplicates) == (12, 0)
    splits = splits_of(tmp_path / "out")
    assert set(splits.values()) == {"train", "test"}
    assert all(splits[f"photo/{n}.jpg"] == splits[f"photo/{n}_again.jpg"] for n in range(6))
    assert read_found(tmp_path / "out" / "duplicates.jsonl") == Found(clusters=6, members=12)
