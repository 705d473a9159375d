"""Every field of the build config changes the result: a setting that does nothing is a defect."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from conftest import make_config, run_build
from pictures import encoded, picture, write_class_folders
from PIL import Image
from pydantic import BaseModel

from pipelines.config import BuildConfig, parse_resize
from pipelines.runner import parse_beam_options
from pipelines.runner import run_build as run_job
from pipelines.workspace.layout import BuildFolder, load_plan, load_receipt
from shards.errors import ShardsmithError, UsageError
from shards.settings import load_settings, validate

OPTIONS = parse_beam_options([], ours=())


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("fields")
    write_class_folders(root / "plain", images=8)
    write_class_folders(root / "other", images=4)
    write_class_folders(root / "split" / "train", images=6)
    write_class_folders(root / "split" / "test", images=4)
    (root / "odd" / "cat").mkdir(parents=True)
    (root / "odd" / "cat" / "cut.jpg").write_bytes(encoded(picture(1))[:-200])
    frames = [picture(n) for n in range(3)]
    (root / "odd" / "cat" / "moving.gif").write_bytes(
        encoded(frames[0], "gif", save_all=True, append_images=frames[1:])
    )
    exif = Image.Exif()
    exif[0x0112] = 6
    for folder, seed, options in (("", 0, {}), ("twin", 7, {}), ("turned", 0, {"exif": exif})):
        (root / folder / "big").mkdir(parents=True)
        for number in range(10):
            data = encoded(picture(number + seed, size=(80, 60)), quality=100, **options)
            (root / folder / "big" / f"{number}.jpg").write_bytes(data)
    for suffix in ("csv", "data"):
        write_listing(root / f"list.{suffix}")
    (root / "ab.txt").write_text("a\nb\n")
    (root / "ba.txt").write_text("b\na\n")
    np.save(root / "x.npy", np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8))
    np.save(root / "y.npy", np.array([0, 1, 0, 1, 0, 1]))
    np.save(root / "z.npy", np.array([0, 0, 0, 1, 1, 1]))
    return root


def write_listing(path: Path) -> None:
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["path", "label", "split", "age", "city", "tags", "pair", "boxes", "kinds", "odd_split"])
        for n in range(10):
            split = ["train", "test"][n % 3 == 0]
            texts = ["a;b|c", "1|2", "[[2, 3, 30, 50], [1, 3, 8, 50]]", '["near", "edge"]', ["train", "night"][n % 2]]
            rows.writerow([f"big/{n}.jpg", "ab"[n % 2], split, n, "xy"[n % 2], *texts])


def generate(count: int) -> Iterator[dict[str, Any]]:
    """A source of kind python."""
    yield from ({"image": encoded(picture(number)), "label": "a"} for number in range(count))


def job_result(config: BuildConfig) -> dict[str, Any]:
    """What the Beam job makes of a config: plan and receipts (the receipts hold every sha256)."""
    folder = BuildFolder(Path(config.output))
    folder.prepare(anew=False)
    try:
        run_job(config, options=OPTIONS)
    except ShardsmithError as error:
        return {"error": str(error)}
    plan = load_plan(folder.plan)
    return {"plan": plan, "receipts": [load_receipt(folder.receipt(shard)) for shard in plan.shards]}


# field -> (settings, the same with the field changed); the job's result must differ. RAW stands for the test's folder.
LISTING = {"source": {"path": "list.csv"}}
GENERATED = {"path": "test_config:generate", "kind": "python"}
FLAT = {"path": "plain", "layout": "flat"}
BOXED = LISTING | {"labels": {"kind": "none"}, "boxes": {}, "image": {"resize": "center_crop:60"}}
TAGGED = {"source": {"path": "list.csv", "fields": {"label": "tags"}}}
PAIRED = {"source": {"path": "list.csv", "fields": {"label": "pair"}}}
JOB_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "source.path": ({}, {"source": {"path": "other"}}),
    "source.name": ({}, {"source": {"name": "pets"}}),
    "source.layout": ({"source": {"path": "split"}}, {"source": {"path": "split", "layout": "class"}}),
    "source.label_pattern": (
        {"source": {**FLAT, "label_pattern": "(?P<label>cat|dog)/"}},
        {"source": {**FLAT, "label_pattern": "(?P<label>[cd])"}},
    ),
    "source.fields": (LISTING, {"source": {"path": "list.csv", "fields": {"label": "city"}}}),
    "source.root": (LISTING, {"source": {"path": "list.csv", "root": "RAW/twin"}}),
    "source.split": ({}, {"source": {"split": "test"}}),
    "source.labels_path": (
        {"source": {"path": "x.npy", "labels_path": "RAW/y.npy"}},
        {"source": {"path": "x.npy", "labels_path": "RAW/z.npy"}},
    ),
    "source.arguments": (
        {"source": {**GENERATED, "arguments": {"count": 3}}},
        {"source": {**GENERATED, "arguments": {"count": 4}}},
    ),
    "sources": (
        {"source": {"path": "plain", "name": "a"}},
        {"sources": [{"path": "RAW/plain", "name": "a"}, {"path": "RAW/other", "name": "b"}]},
    ),
    "labels.kind": (LISTING, {**LISTING, "labels": {"kind": "none"}}),
    "labels.names": (
        {**LISTING, "labels": {"names": "RAW/ab.txt"}},
        {**LISTING, "labels": {"names": "RAW/ba.txt"}},
    ),
    "labels.separator": (
        {**TAGGED, "labels": {"kind": "multi"}},
        {**TAGGED, "labels": {"kind": "multi", "separator": ";"}},
    ),
    "labels.length": (
        {**PAIRED, "labels": {"kind": "regression"}},
        {**PAIRED, "labels": {"kind": "regression", "length": 2}},
    ),
    "columns": (LISTING, {**LISTING, "columns": {"age": {"type": "int"}}}),
    "columns.*.type": (
        {**LISTING, "columns": {"age": {"type": "int"}}},
        {**LISTING, "columns": {"age": {"type": "float"}}},
    ),
    "columns.*.list": (
        {**LISTING, "columns": {"kinds": {"type": "text"}}},
        {**LISTING, "columns": {"kinds": {"type": "text", "list": True}}},
    ),
    "columns.*.per": (
        {**BOXED, "columns": {"kinds": {"type": "text", "list": True}}},
        {**BOXED, "columns": {"kinds": {"type": "text", "per": "box"}}},
    ),
    "boxes": (LISTING, {**LISTING, "boxes": {}}),
    "boxes.format": (BOXED, {**BOXED, "boxes": {"format": "xywh"}}),
    "boxes.unit": (BOXED, {**BOXED, "boxes": {"unit": "fraction"}}),
    "boxes.frame": (
        {**BOXED, "source": {"path": "list.csv", "root": "RAW/turned"}},
        {**BOXED, "source": {"path": "list.csv", "root": "RAW/turned"}, "boxes": {"frame": "upright"}},
    ),
    "boxes.min_visible": (BOXED, {**BOXED, "boxes": {"min_visible": 0.8}}),
    "splits.fractions": ({}, {"splits": {"fractions": {"train": 0.5, "test": 0.5}}}),
    "splits.salt": ({}, {"splits": {"salt": "pepper"}}),
    "splits.use_given": ({"source": {"path": "split"}}, {"source": {"path": "split"}, "splits": {"use_given": False}}),
    "splits.given": (
        {"source": {"path": "list.csv", "fields": {"split": "odd_split"}}},
        {"source": {"path": "list.csv", "fields": {"split": "odd_split"}}, "splits": {"given": ["night"]}},
    ),
    "splits.stratify": (
        {"splits": {"fractions": {"train": 0.5, "test": 0.5}}},
        {"splits": {"fractions": {"train": 0.5, "test": 0.5}, "stratify": True}},
    ),
    "image.resize.mode": ({"image": {"resize": "exact:20"}}, {"image": {"resize": "center_crop:20"}}),
    "image.resize.size": ({"image": {"resize": "exact:20"}}, {"image": {"resize": "exact:24"}}),
    "image.resize.width": ({"image": {"resize": "exact:20x16"}}, {"image": {"resize": "exact:24x16"}}),
    "image.resize.height": ({"image": {"resize": "exact:20x16"}}, {"image": {"resize": "exact:20x18"}}),
    "image.resize.only_if_larger": (
        {"image": {"resize": "exact:200"}},
        {"image": {"resize": "exact:200:only_if_larger"}},
    ),
    "image.encode.format": ({}, {"image": {"encode": {"format": "png"}}}),
    "image.encode.quality": ({}, {"image": {"encode": {"quality": 40}}}),
    "image.truncated": ({"source": {"path": "odd"}}, {"source": {"path": "odd"}, "image": {"truncated": "keep"}}),
    "image.max_frames": ({"source": {"path": "odd"}}, {"source": {"path": "odd"}, "image": {"max_frames": 2}}),
    "image.max_aspect": ({}, {"image": {"max_aspect": 1.2}}),
    "image.max_file_mb": ({}, {"image": {"max_file_mb": 0.001}}),
    "image.max_megapixels": ({}, {"image": {"max_megapixels": 0.0011}}),
    "shards.target_mb": ({}, {"shards": {"target_mb": 0.004}}),
    "shards.min_count": ({}, {"shards": {"min_count": 2}}),
    "shards.count": ({}, {"shards": {"count": 2}}),
}


@pytest.mark.parametrize("field", JOB_CASES)
def test_the_field_changes_what_the_job_writes(field, raw, tmp_path):
    results = []
    for number, sections in enumerate(JOB_CASES[field]):
        values = json.loads(json.dumps(sections).replace("RAW", str(raw)))
        values["output"] = str(tmp_path / str(number))
        if "sources" not in values:
            source = values.setdefault("source", {})
            if source.get("kind") != "python":
                source["path"] = str(raw / source.get("path", "plain"))
        results.append(job_result(validate(BuildConfig, values, place="the test")))
    assert results[0] != results[1]
    assert "error" not in results[0]
    assert "error" not in results[1]


def test_source_kind_decides_how_a_path_is_read(raw, tmp_path):
    with pytest.raises(UsageError, match="neither a folder nor a file that ends in .* set source.kind"):
        run_build(make_config(raw / "list.data", tmp_path / "no"))
    result = job_result(make_config(raw / "list.data", tmp_path / "yes", source={"kind": "csv"}))
    assert result["plan"].images == 10


def test_output_and_name_and_budget(raw, tmp_path):
    source = write_class_folders(tmp_path / "raw", images=6)
    (source / "cat" / "broken.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(ShardsmithError, match="max_reject_fraction allows 0.00%"):
        run_build(make_config(source, tmp_path / "strict"))
    assert not (tmp_path / "strict" / "manifest.json").exists()
    manifest = run_build(make_config(source, tmp_path / "lenient", name="pets", max_reject_fraction=0.1))
    assert (tmp_path / "lenient" / "manifest.json").exists()
    assert manifest.name == "pets"
    assert json.loads((tmp_path / "lenient" / "dataset_info.json").read_text())["name"] == "pets"


# Fields that other tests prove.
OTHER_FIELDS = {
    "output": "test_config.py::test_output_and_name_and_budget",
    "name": "test_config.py::test_output_and_name_and_budget",
    "max_reject_fraction": "test_config.py::test_output_and_name_and_budget",
    "source.kind": "test_config.py::test_source_kind_decides_how_a_path_is_read",
    "splits.fail_on_leak": "test_leaks.py::test_fail_on_leak_fails_the_build_and_keeps_the_list",
    "columns.*.scale": "test_transform.py::test_columns_are_scaled_as_configured",
    "columns.*.buckets": "test_transform.py::test_the_number_of_buckets_is_obeyed",
    "transform.analyze": "test_transform.py::test_the_analysed_splits_define_the_normalisation",
    "max_rejects": "test_accounts.py::test_budgets_by_number_fraction_and_reason",
    "dedupe.find": "test_marking.py::test_near_finds_what_looks_alike",
    "dedupe.distance": "test_marking.py::test_the_distance_is_obeyed",
    "dedupe.policy": "test_marking.py::test_report_keeps_all_in_one_unit",
    "quarantine": "test_accounts.py::test_quarantine_keeps_the_bytes_once",
    "image.max_seconds": "test_decoders.py::test_a_file_that_cannot_even_be_read_in_time_is_refused",
    "image.max_memory_mb": "test_decoders.py::test_a_bad_picture_costs_one_reject_wherever_it_is",
}


def fields_of(kind: type[BaseModel], prefix: str = "") -> set[str]:
    """The dotted names of all settings; `columns.*.type` is one inside a mapping. Several of a known kind are one."""
    found: set[str] = set()
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= fields_of(inner, f"{prefix}{name}.")
            continue
        settings = [part for part in get_args(inner) if isinstance(part, type) and issubclass(part, BaseModel)]
        found |= {prefix + name} if name != "source" else set()
        if get_origin(inner) is not tuple:
            star = "*." if get_origin(inner) is dict else ""
            found |= {each for part in settings for each in fields_of(part, f"{prefix}{name}.{star}")}
    return found


def test_no_field_is_without_a_test():
    assert fields_of(BuildConfig) == set(JOB_CASES) | set(OTHER_FIELDS)
    assert not set(JOB_CASES) & set(OTHER_FIELDS)


@pytest.mark.parametrize("field", OTHER_FIELDS)
def test_the_other_test_of_a_field_exists(field):
    file, _, name = OTHER_FIELDS[field].partition("::")
    assert f"def {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")


EXAMPLES = [path for path in (Path(__file__).parent.parent / "configs").glob("*.yaml") if "train" not in path.name]


@pytest.mark.parametrize("path", sorted(EXAMPLES), ids=lambda path: path.name)
def test_the_examples_are_configs_and_say_how_to_run_them(path):
    load_settings(BuildConfig, path, {})
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(f"python -m pipelines build configs/{path.name}" in line for line in comments)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("none", {"mode": "none"}),
        ("center_crop:256", {"mode": "center_crop", "size": 256}),
        ("exact:320x240", {"mode": "exact", "width": 320, "height": 240}),
        ("keep_ratio:64:only_if_larger", {"mode": "keep_ratio", "size": 64, "only_if_larger": True}),
    ],
)
def test_resize_short_form(text, values):
    assert parse_resize(text) == values


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"image.resize": "center_crop"}, "image.resize: mode center_crop needs either size, or width and height"),
        ({"image.resize": "center_crop:1x2x3"}, "is not of the form MODE:SIZE or MODE:WIDTHxHEIGHT"),
        ({"image.resize": "shrink:3"}, "image.resize: Input should be 'none', 'exact', 'keep_ratio'"),
        ({"image.resize": "keep_ratio:3x4"}, "mode keep_ratio needs size, the length of one side in pixels"),
        ({"image.resize": "none:3"}, "mode none takes no size; choose a mode such as center_crop"),
        ({"image.resize.mode": "exact", "image.resize.width": 3}, "width and height come together"),
        ({"splits.fractions": {"train": 0.5}}, "splits.fractions: fractions must sum to 1, these sum to 0.5"),
        ({"splits.fractions": {"a/b": 1.0}}, "split name 'a/b' must be letters, digits and underscores"),
        ({"name": "My Data"}, "'My Data' must be lower-case letters, digits and underscores"),
        ({"shards.count": 0}, "Input should be greater than or equal to 1"),
        ({"max_reject_fraction": 1.5}, "max_reject_fraction: Input should be less than or equal to 1 (got 1.5)"),
        ({"columns": {"c": {"type": "text", "scale": "z_score"}}}, "a text column cannot be scaled by z_score"),
        ({"columns": {"c": {"type": "float", "scale": "vocabulary"}}}, "a float column has no vocabulary"),
        (
            {"columns": {"c": {"type": "int", "list": True, "scale": "z_score"}}},
            "columns.c: a column of several values cannot be scaled by z_score; use none",
        ),
        (
            {"columns": {"c": {"type": "int", "list": True, "per": "box"}}, "boxes": {}},
            "columns.c: a column with per: box has one value for each box; remove list",
        ),
        (
            {"columns": {"c": {"type": "int", "buckets": 4}}},
            "columns.c: buckets are for scale buckets, not for none; remove them, or set the scale",
        ),
        (
            {"columns": {"c": {"type": "int", "per": "box"}}},
            "columns.c has a value per box, but there are no boxes; add `boxes: {}`",
        ),
        (
            {"columns": {"label": {"type": "int"}}},
            "columns: 'label' is a name of our own; choose another and map it with source.fields",
        ),
        ({"columns": {"c": {"type": "bool"}}}, "columns.c.type: Input should be 'int', 'float' or 'text' (got 'bool')"),
        (
            {"labels": {"kind": "none", "names": "n.txt"}},
            "labels: labels of kind none have no names; remove labels.names",
        ),
        ({"labels": {"kind": "regression", "names": "n.txt"}}, "labels of kind regression have no names"),
        (
            {"labels.length": 2},
            "labels: labels.length is the number of regression targets; set labels.kind to regression",
        ),
        (
            {"labels.separator": ","},
            "labels: labels of kind single are not cut; remove labels.separator, or set labels.kind",
        ),
        ({"labels.kind": "several"}, "labels.kind: Input should be 'single', 'multi', 'none' or 'regression'"),
        ({"labels": {"kind": "multi", "separator": ""}}, "labels.separator: String should have at least 1 character"),
        ({"boxes.format": "xyx"}, "boxes.format: Input should be 'xyxy', 'xywh', 'yxyx' or 'cxcywh' (got 'xyx')"),
        ({"boxes.min_visible": 1}, "boxes.min_visible: Input should be less than 1"),
        ({"boxes.units": "pixels"}, "unknown key 'units' in boxes; did you mean 'unit'?"),
        ({"sources": [{"path": "a"}]}, "set either source (or --source PATH), or sources with a list of them"),
        ({"image.encode.qualty": 3}, "unknown key 'qualty' in image.encode; did you mean 'quality'?"),
    ],
)
def test_impossible_configs_are_refused(overrides, message):
    with pytest.raises(UsageError) as caught:
        load_settings(BuildConfig, None, {"source.path": "x", "output": "y", **overrides})
    assert message in str(caught.value)


def test_dedupe_is_a_word_or_a_mapping():
    assert make_config("raw", "out").dedupe.find == "none"
    near = make_config("raw", "out", dedupe="near").dedupe
    assert (near.find, near.distance, near.policy, near.limit) == ("near", 16, "keep_first", 16)
    assert make_config("raw", "out", dedupe={"find": "exact", "policy": "report"}).dedupe.limit == 0


@pytest.mark.parametrize(
    ("dedupe", "message"),
    [
        ("fuzzy", "dedupe: Input should be 'none', 'exact' or 'near'"),
        ({"find": "near", "distance": 32}, "dedupe.distance: Input should be less than or equal to 31"),
        (
            {"find": "exact", "distance": 3},
            "dedupe: distance is for find near, not for exact; remove it, or set dedupe.find to near",
        ),
        ({"policy": "report"}, "dedupe: policy needs duplicates to be found; set dedupe.find to exact or near"),
        ({"find": "near", "polcy": "report"}, "unknown key 'polcy' in dedupe; did you mean 'policy'?"),
    ],
)
def test_dedupe_settings_that_cannot_be_meant_are_refused(dedupe, message):
    with pytest.raises(UsageError) as caught:
        make_config("raw", "out", dedupe=dedupe)
    assert message in str(caught.value)
