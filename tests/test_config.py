"""Every field of the build config changes the result: a setting that does nothing is a defect."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import make_config, run_build
from pictures import encoded, picture, write_class_folders
from pydantic import BaseModel

from pipelines.config import BuildConfig, parse_resize
from pipelines.layout import BuildFolder, load_plan, load_receipt
from pipelines.runner import parse_beam_options
from pipelines.runner import run_build as run_job
from shards.errors import ShardsmithError, UsageError
from shards.settings import load_settings

OPTIONS = parse_beam_options([], ours=())


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("fields")
    write_class_folders(root / "plain", images=8)
    write_class_folders(root / "other", images=4)
    write_class_folders(root / "split" / "train", images=6)
    write_class_folders(root / "split" / "test", images=4)
    (root / "big").mkdir()
    rows = ["path,label,split,age,city"]
    for number in range(10):
        path = root / "big" / f"{number}.jpg"
        path.write_bytes(encoded(picture(number, size=(80, 60)), quality=100))
        rows.append(
            f"big/{number}.jpg,{'ab'[number % 2]},{['train', 'test'][number % 3 == 0]},{number},{'xy'[number % 2]}"
        )
    for suffix in ("csv", "data"):
        (root / f"list.{suffix}").write_text("\n".join(rows) + "\n")
    return root


def job_result(config: BuildConfig) -> dict[str, Any]:
    """What the Beam job makes of a config: plan and receipts (the receipts hold every sha256)."""
    folder = BuildFolder(Path(config.output))
    folder.prepare(overwrite=False)
    try:
        run_job(config, options=OPTIONS)
    except ShardsmithError as error:
        return {"error": str(error)}
    plan = load_plan(folder.plan)
    return {"plan": plan, "receipts": [load_receipt(folder.receipt(shard)) for shard in plan.shards]}


# field -> (settings, the same with the field changed); the job's result must differ.
LISTING = {"source": {"path": "list.csv"}}
JOB_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "source.path": ({}, {"source": {"path": "other"}}),
    "source.layout": ({"source": {"path": "split"}}, {"source": {"path": "split", "layout": "class"}}),
    "columns": (LISTING, {**LISTING, "columns": {"age": {"type": "int"}}}),
    "columns.*.type": (
        {**LISTING, "columns": {"age": {"type": "int"}}},
        {**LISTING, "columns": {"age": {"type": "float"}}},
    ),
    "splits.fractions": ({}, {"splits": {"fractions": {"train": 0.5, "test": 0.5}}}),
    "splits.salt": ({}, {"splits": {"salt": "pepper"}}),
    "splits.use_given": ({"source": {"path": "split"}}, {"source": {"path": "split"}, "splits": {"use_given": False}}),
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
        values = json.loads(json.dumps(sections))
        path = raw / values.setdefault("source", {}).pop("path", "plain")
        results.append(job_result(make_config(path, tmp_path / str(number), **values)))
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


# Fields whose effect is on tf.Transform's graph; tests/test_transform.py asserts their values.
TRANSFORM_FIELDS = {"columns.*.scale", "columns.*.buckets", "transform.analyze"}
OTHER_FIELDS = {"source.kind", "output", "name", "max_reject_fraction"}


def fields_of(kind: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= fields_of(inner, f"{prefix}{name}.")
            continue
        found.add(prefix + name)
        for argument in getattr(inner, "__args__", ()):
            if isinstance(argument, type) and issubclass(argument, BaseModel):
                found |= fields_of(argument, f"{prefix}{name}.*.")
    return found


def test_no_field_is_without_a_test():
    assert fields_of(BuildConfig) == set(JOB_CASES) | TRANSFORM_FIELDS | OTHER_FIELDS


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
        ({"image.encode.qualty": 3}, "unknown key 'qualty' in image.encode; did you mean 'quality'?"),
    ],
)
def test_impossible_configs_are_refused(overrides, message):
    with pytest.raises(UsageError) as caught:
        load_settings(BuildConfig, None, {"source.path": "x", "output": "y", **overrides})
    assert message in str(caught.value)
