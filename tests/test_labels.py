"""Every kind of label, built by the real pipeline and read back by every reader."""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from conftest import make_config, run_build
from google.protobuf import text_format
from pictures import encoded, picture, write_class_folders
from tensorflow_metadata.proto.v0 import schema_pb2

from pipelines.analysis.transform import read_label_frequencies
from shards.__main__ import main as shards_command
from shards.manifest import Manifest
from shards.verify import verify

IMAGES = 6
ENCODING = {"image": {"resize": "exact:16", "encode": {"format": "png"}}, "splits": {"fractions": {"train": 1.0}}}
DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}


@dataclass(frozen=True)
class Case:
    """A dataset, and the label features that each of its examples must have."""

    manifest: Manifest
    root: Path
    expected: dict[str, dict[str, Any]]


def write_pictures(folder: Path) -> None:
    for number in range(IMAGES):
        (folder / f"{number}.png").write_bytes(encoded(picture(number), "png"))


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def label_rows(labels: Mapping[str, int], given: list[list[str]]) -> dict[str, dict[str, Any]]:
    """What examples with these labels hold: ids in order, and the names that belong to them."""
    rows = {}
    for number, names in enumerate(given):
        ordered = sorted(names, key=labels.__getitem__)
        rows[f"{number}.png"] = {"label": [labels[name] for name in ordered], "label_name": ordered}
    return rows


def integers(folder: Path) -> tuple[dict[str, Any], Path, dict[str, dict[str, Any]]]:
    values = [10, 9, -1, 100, 9, 10]
    source = write_csv(folder / "l.csv", ["path", "label"], [[f"{n}.png", value] for n, value in enumerate(values)])
    ids = {"-1": 0, "9": 1, "10": 2, "100": 3}
    return {}, source, label_rows(ids, [[str(value)] for value in values])


def named(folder: Path) -> tuple[dict[str, Any], Path, dict[str, dict[str, Any]]]:
    (folder / "names.txt").write_text("zebra\nünicorn\nape\nnever seen\n", encoding="utf-8")
    values: list[Any] = [2, 0, "ünicorn", 1, 0, 2]
    source = write_csv(folder / "l.csv", ["path", "label"], [[f"{n}.png", value] for n, value in enumerate(values)])
    names = ["ape", "zebra", "ünicorn", "ünicorn", "zebra", "ape"]
    ids = {"zebra": 0, "ünicorn": 1, "ape": 2}
    return {"labels": {"names": str(folder / "names.txt")}}, source, label_rows(ids, [[name] for name in names])


def multi(folder: Path) -> tuple[dict[str, Any], Path, dict[str, dict[str, Any]]]:
    texts = ["sea;sky", "", "sky", "tree; sea ;sky", "sea", "tree"]
    source = write_csv(folder / "l.csv", ["path", "label"], [[f"{n}.png", text] for n, text in enumerate(texts)])
    given = [[part.strip() for part in text.split(";") if part] for text in texts]
    settings = {"labels": {"kind": "multi", "separator": ";"}}
    return settings, source, label_rows({"sea": 0, "sky": 1, "tree": 2}, given)


def none(folder: Path) -> tuple[dict[str, Any], Path, dict[str, dict[str, Any]]]:
    return {"labels": {"kind": "none"}}, folder, {f"{number}.png": {} for number in range(IMAGES)}


def regression(folder: Path) -> tuple[dict[str, Any], Path, dict[str, dict[str, Any]]]:
    targets = [[number / 4, -number] for number in range(IMAGES)]
    source = folder / "l.jsonl"
    rows = [{"path": f"{n}.png", "angles": target} for n, target in enumerate(targets)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"labels": {"kind": "regression", "length": 2}, "source": {"fields": {"label": "angles"}}}
    return settings, source, {f"{n}.png": {"target": target} for n, target in enumerate(targets)}


CASES: dict[str, Callable[[Path], tuple[dict[str, Any], Path, dict[str, dict[str, Any]]]]] = {
    make.__name__: make for make in (integers, named, multi, none, regression)
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Every kind, built once."""
    made = {}
    for name, make in CASES.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "raw").mkdir()
        write_pictures(folder / "raw")
        settings, source, expected = make(folder / "raw")
        manifest = run_build(make_config(source, folder / "out", name=name, **ENCODING, **settings))
        made[name] = Case(manifest, folder / "out", expected)
    return made


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def plainly(value: Any) -> Any:
    """Numbers and text in lists, however a reader wraps them."""
    array = np.atleast_1d(value.numpy() if hasattr(value, "numpy") else value)
    return [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]


def label_features(example: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plainly(example[name]) for name in ("label", "label_name", "target") if name in example}


def test_plain_tf_data_reads_the_labels(case):
    spec = {
        feature.name: tf.io.FixedLenSequenceFeature([], DTYPES[feature.type], allow_missing=True)
        if feature.length is None
        else tf.io.FixedLenFeature([] if feature.length == 1 else [feature.length], DTYPES[feature.type])
        for feature in case.manifest.features
    }
    files = [str(case.root / shard.path) for shard in case.manifest.split("train").shards]
    examples = [tf.io.parse_single_example(raw, spec) for raw in tf.data.TFRecordDataset(files)]
    assert {plainly(example["key"])[0]: label_features(example) for example in examples} == case.expected


def test_tfds_reads_the_labels(case):
    builder = tfds.builder_from_directory(str(case.root))
    examples = list(builder.as_dataset(split="train"))
    assert {plainly(example["key"])[0]: label_features(example) for example in examples} == case.expected
    assert all(example["image"].shape == (16, 16, 3) for example in examples)


def test_tfds_knows_what_the_labels_are(cases):
    features = {name: tfds.builder_from_directory(str(case.root)).info.features for name, case in cases.items()}
    assert features["integers"]["label"].names == ["-1", "9", "10", "100"]
    assert features["named"]["label"].names == ["zebra", "ünicorn", "ape", "never seen"]
    assert features["multi"]["label"].feature.names == ["sea", "sky", "tree"]
    assert "label" not in features["none"]
    assert features["regression"]["target"].shape == (2,)


def test_tfds_supervised_pairs(cases):
    for name, key in (("multi", "label"), ("regression", "target"), ("named", "label")):
        builder = tfds.builder_from_directory(str(cases[name].root))
        seen = [plainly(pair[1]) for pair in builder.as_dataset(split="train", as_supervised=True)]
        assert sorted(seen) == sorted(row[key] for row in cases[name].expected.values())
    with pytest.raises(ValueError, match="as_supervised=True but "):
        tfds.builder_from_directory(str(cases["none"].root)).as_dataset(split="train", as_supervised=True)


def test_the_manifest_tells_the_kind_and_counts_each_label(cases):
    told = {name: (case.manifest.label_kind, case.manifest.labels) for name, case in cases.items()}
    assert told == {
        "integers": ("single", ("-1", "9", "10", "100")),
        "named": ("single", ("zebra", "ünicorn", "ape", "never seen")),
        "multi": ("multi", ("sea", "sky", "tree")),
        "none": ("none", ()),
        "regression": ("regression", ()),
    }
    assert cases["multi"].manifest.split("train").labels == {"sea": 3, "sky": 3, "tree": 2}
    assert cases["named"].manifest.split("train").labels == {"ape": 2, "zebra": 2, "ünicorn": 2}
    assert cases["none"].manifest.split("train").labels == {}
    assert not (cases["none"].root / "label.labels.txt").exists()
    assert not (cases["regression"].root / "label.labels.txt").exists()


def test_the_manifest_and_the_schema_list_the_same_features(case):
    schema = text_format.Parse((case.root / "schema.pbtxt").read_text(), schema_pb2.Schema())
    assert [feature.name for feature in schema.feature] == [feature.name for feature in case.manifest.features]
    by_name = {feature.name: feature for feature in schema.feature}
    for feature in case.manifest.features:
        if feature.length is None:
            assert not by_name[feature.name].HasField("shape")
        else:
            dims = [dim.size for dim in by_name[feature.name].shape.dim]
            assert dims == ([] if feature.length == 1 else [feature.length])
    if case.manifest.labels:
        assert by_name["label"].int_domain.max == len(case.manifest.labels) - 1
        assert tuple(by_name["label_name"].string_domain.value) == case.manifest.labels


def test_verify_finds_them_good(case):
    assert verify(case.root) == []


INSPECTED = {
    "integers": ("6 examples of 4 classes", "label=0  label_name='-1'"),
    "named": ("6 examples of 4 classes", "label=1  label_name='ünicorn'"),
    "multi": ("6 examples with any of 3 labels", "label=0,1,2  label_name='sea','sky','tree'"),
    "none": ("6 examples without labels", "key='0.png'  width=16"),
    "regression": ("6 examples with a target", "target=0.25,-1.0"),
}


@pytest.mark.parametrize("name", CASES)
def test_inspect_tells_the_kind_and_draws_pictures(name, cases, tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    assert (
        shards_command(["inspect", str(cases[name].root), "--records", "6", "--show", "3", "--sheet", str(sheet)]) == 0
    )
    output = capsys.readouterr().out
    assert all(part in output for part in INSPECTED[name])
    assert ("classes:" in output) == bool(cases[name].manifest.labels)
    assert sheet.exists()


REPORTED = {
    "integers": ("examples of 4 classes", "<figcaption>-1</figcaption>"),
    "named": ("examples of 4 classes", "<td>never seen</td><td class=number>0</td>"),
    "multi": ("examples with any of 3 labels", "<figcaption>sea, sky, tree</figcaption>"),
    "none": ("examples without labels", "<figcaption>0.png</figcaption>"),
    "regression": ("examples with a target", "<figcaption>0.25, -1.0</figcaption>"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_report_tells_the_kind_and_shows_pictures(name, cases):
    page = (cases[name].root / "report.html").read_text()
    assert all(part in page for part in REPORTED[name])
    assert ("<h2>Classes</h2>" in page) == bool(cases[name].manifest.labels)
    assert page.count("<figure>") == IMAGES


def graph_of(case: Case) -> tuple[Any, dict[str, Any]]:
    model = tf.saved_model.load(str(case.root / "transform_fn"))
    (specs,), _ = model.transform_fn.structured_input_signature
    return model, specs


def test_the_graph_takes_several_labels_as_a_sparse_tensor(cases):
    model, specs = graph_of(cases["multi"])
    assert isinstance(specs["label_name"], tf.SparseTensorSpec)
    given = tf.sparse.from_dense([["tree", "sea"], ["", ""], ["sky", "unknown"]])
    inputs = {name: tf.zeros([0, 3]) for name in ("pixel", "pixel_square")}
    labels = model.transform_fn(inputs | {"label_name": given})["label"]
    assert tf.sparse.to_dense(labels, -9).numpy().tolist() == [[2, 0], [-9, -9], [1, -1]]


def test_the_graph_of_each_kind_has_its_own_inputs(cases):
    inputs = {name: set(graph_of(case)[1]) - {"pixel", "pixel_square"} for name, case in cases.items()}
    assert inputs == {
        "integers": {"label_name"},
        "named": {"label_name"},
        "multi": {"label_name"},
        "none": set(),
        "regression": {"target"},
    }
    model, specs = graph_of(cases["regression"])
    feeds = {name: tf.zeros([0, *spec.shape[1:]]) for name, spec in specs.items()}
    assert model.transform_fn(feeds | {"target": [[0.5, -2.0]]})["target"].numpy().tolist() == [[0.5, -2.0]]


def test_the_analysis_counts_each_of_several_labels(cases):
    assert read_label_frequencies(cases["multi"].root / "transform_fn") == {"sea": 3, "sky": 3, "tree": 2}


def test_several_labels_of_which_the_analysed_split_has_none(tmp_path):
    write_pictures(tmp_path)
    rows = [[f"{n}.png", "a|b" if n > 3 else "", "test" if n > 3 else "train"] for n in range(IMAGES)]
    source = write_csv(tmp_path / "l.csv", ["path", "label", "split"], rows)
    manifest = run_build(make_config(source, tmp_path / "out", labels={"kind": "multi"}))
    assert manifest.labels == ("a", "b")
    assert {split.name: split.labels for split in manifest.splits} == {"train": {}, "test": {"a": 2, "b": 2}}
    assert verify(tmp_path / "out") == []


def test_without_labels_class_folders_are_only_folders(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=2)
    (source / "loose.png").write_bytes(encoded(picture(1), "png"))
    manifest = run_build(make_config(source, tmp_path / "out", labels={"kind": "none"}, **ENCODING))
    assert (manifest.counts.written, manifest.labels) == (5, ())
    assert "label" not in {feature.name for feature in manifest.features}


# Columns and boxes, end to end


def test_columns_and_boxes_reach_every_reader(tmp_path):
    write_pictures(tmp_path)  # 40x30, of which center_crop keeps the middle 30x30
    header = ["path", "label", "age", "big", "note", "tags", "boxes", "kind"]
    rows = [
        ["0.png", "a", "3", str(2**62), "größe", '["x", "y"]', "[[5, 0, 35, 30], [0, 0, 4, 30]]", '["whole", "gone"]'],
        ["1.png", "a", "-4", "0", "", "", "", ""],
    ]
    columns = {
        "age": {"type": "float"},
        "big": {"type": "int"},
        "note": {"type": "text"},
        "tags": {"type": "text", "list": True},
        "kind": {"type": "text", "per": "box"},
    }
    source = write_csv(tmp_path / "l.csv", header, rows)
    config = make_config(
        source, tmp_path / "out", columns=columns, boxes={}, **ENCODING | {"image": {"resize": "center_crop:30"}}
    )
    manifest = run_build(config)
    assert (manifest.counts.boxes_kept, manifest.counts.boxes_dropped) == (1, 1)
    assert verify(tmp_path / "out") == []
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert isinstance(builder.info.features["boxes"].feature, tfds.features.BBoxFeature)
    found = {plainly(example["key"])[0]: example for example in builder.as_dataset(split="train")}
    first, second = found["0.png"], found["1.png"]
    assert {name: plainly(first[name]) for name in columns} == {
        "age": [3.0], "big": [2**62], "note": ["größe"], "tags": ["x", "y"], "kind": ["whole"],
    }  # fmt: skip
    assert {name: plainly(second[name]) for name in columns} == {
        "age": [-4.0], "big": [0], "note": [""], "tags": [], "kind": [],
    }  # fmt: skip
    assert first["boxes"].numpy().tolist() == [[0.0, 0.0, 1.0, 1.0]]
    assert second["boxes"].shape == (0, 4)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "1 boxes, 1 dropped" in page
    assert '<svg viewBox="0 0 30 30"><rect x="0.00" y="0.00" width="30.00" height="30.00"/></svg>' in page
