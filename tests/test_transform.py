"""tf.Transform's analysis over facts: values, and the plain SavedModel that training and serving load."""

import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from conftest import make_config, run_build
from pictures import write_class_folders

from pipelines.analysis.transform import analyze_facts, read_label_frequencies
from pipelines.runner import parse_beam_options
from pipelines.values import Content
from pipelines.writing.facts import facts_schema

COLUMNS = {
    "plain": {"type": "int"},
    "z": {"type": "int", "scale": "z_score"},
    "unit": {"type": "float", "scale": "min_max"},
    "bucket": {"type": "float", "scale": "buckets", "buckets": 4},
    "word": {"type": "text", "scale": "vocabulary"},
    "code": {"type": "int", "scale": "vocabulary"},
    "raw_text": {"type": "text"},
}
CONFIG = make_config("raw", "out", columns=COLUMNS)
ROWS = 40
PICTURES = Content()


def facts_file(path):
    rng = np.random.default_rng(0)
    values = {
        "pixel": [list(map(float, row)) for row in rng.uniform(0.2, 0.6, (ROWS, 3))],
        "label_name": [[b"cat" if n < 30 else b"dog"] for n in range(ROWS)],
        "plain": [[n] for n in range(ROWS)],
        "z": [[n] for n in range(ROWS)],
        "unit": [[n / 2] for n in range(ROWS)],
        "bucket": [[float(n)] for n in range(ROWS)],
        "word": [[b"rare" if n == 0 else b"often" if n % 2 else b"some"] for n in range(ROWS)],
        "code": [[7 if n % 4 else 9] for n in range(ROWS)],
        "raw_text": [[b"t%d" % n] for n in range(ROWS)],
    }
    values["pixel_square"] = [[m * m + 0.01 for m in row] for row in values["pixel"]]
    table = (
        pa.table(values, schema=None)
        .select(facts_schema(CONFIG, Content()).names)
        .cast(facts_schema(CONFIG, Content()))
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return values


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    base = tmp_path_factory.mktemp("facts")
    values = facts_file(base / "train-00000.arrow")
    analyze_facts(
        [base / "train-00000.arrow"],
        base,
        labels=["ape", "cat", "dog"],
        config=CONFIG,
        content=Content(),
        options=parse_beam_options([], ours=()),
    )
    return values, base / "transform_fn"


def apply(transform_fn, **inputs):
    model = tf.saved_model.load(str(transform_fn))
    (specs,), _ = model.transform_fn.structured_input_signature
    empty = {name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in specs.items()}
    return model.transform_fn(empty | {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()})


def test_labels_get_the_plans_ids_and_unknown_ones_minus_one(analysed):
    outputs = apply(analysed[1], label_name=["dog", "ape", "cat", "gnu"])
    assert outputs["label"].numpy().tolist() == [2, 0, 1, -1]


def test_label_frequencies(analysed):
    assert read_label_frequencies(analysed[1]) == {"cat": 30, "dog": 10}


def test_pixels_are_normalised_by_the_moments_of_all_images(analysed):
    values, transform_fn = analysed
    mean = np.mean(values["pixel"], axis=0)
    std = np.sqrt(np.mean(values["pixel_square"], axis=0) - mean**2)
    pixels = np.random.default_rng(1).uniform(0, 1, (500, 3)).astype(np.float32)
    outputs = apply(transform_fn, pixel=pixels)
    np.testing.assert_allclose(outputs["pixel"], (pixels - mean) / std, rtol=1e-4, atol=1e-5)


def test_columns_are_scaled_as_configured(analysed):
    outputs = apply(
        analysed[1],
        plain=[5],
        z=[0, 39],
        unit=[0.0, 19.5, 9.75],
        bucket=[0.0, 12.0, 25.0, 39.0],
        word=["often", "some", "rare", "new"],
        code=[7, 9],
        raw_text=["as it is"],
    )
    assert outputs["plain"].numpy().tolist() == [5]
    spread = math.sqrt((ROWS**2 - 1) / 12)
    np.testing.assert_allclose(outputs["z"], [-19.5 / spread, 19.5 / spread], rtol=1e-5)
    np.testing.assert_allclose(outputs["unit"], [0, 1, 0.5], rtol=1e-6)
    assert outputs["bucket"].numpy().tolist() == [0, 1, 2, 3]
    assert outputs["word"].numpy().tolist() == [0, 1, 2, 3]  # by frequency, then the unknown
    assert outputs["code"].numpy().tolist() == [0, 1]
    assert outputs["raw_text"].numpy().tolist() == [b"as it is"]


def test_the_graph_loads_without_tensorflow_transform(analysed):
    code = f"""
        import sys
        sys.modules["tensorflow_transform"] = sys.modules["apache_beam"] = sys.modules["tfx_bsl"] = None
        import tensorflow as tf
        model = tf.saved_model.load({str(analysed[1])!r})
        (specs,), _ = model.transform_fn.structured_input_signature
        inputs = {{name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in specs.items()}}
        print("label", model.transform_fn(inputs | {{"label_name": tf.constant(["dog"])}})["label"].numpy()[0])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "label 2", done.stderr
    assert "fingerprint" not in done.stderr.lower()  # there is none, and nobody misses it


def test_tensorflow_transform_reads_its_graph_back(analysed):
    outputs = apply(analysed[1], word=["often", "new"], unit=[19.5])
    output = tft.TFTransformOutput(str(analysed[1].parent))
    (specs,), _ = tf.saved_model.load(str(analysed[1])).transform_fn.structured_input_signature
    inputs = {name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in specs.items()}
    again = output.transform_features_layer()(inputs | {"word": tf.constant(["often", "new"]), "unit": [19.5]})
    assert again["word"].numpy().tolist() == outputs["word"].numpy().tolist() == [0, 3]
    assert again["unit"].numpy().tolist() == outputs["unit"].numpy().tolist() == [1]
    assert output.vocabulary_by_name("word_vocabulary") == [b"often", b"some", b"rare"]


def test_the_analysed_splits_define_the_normalisation(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=15)
    outputs = {}
    for names in ((), ("train",), ("test",), ("train", "test")):
        config = make_config(
            source,
            tmp_path / "-".join(("out", *names)),
            splits={"fractions": {"train": 0.5, "test": 0.5}},
            transform={"analyze": list(names)},
        )
        run_build(config)
        outputs[names] = apply(f"{config.output}/transform_fn", pixel=[[0.5, 0.5, 0.5]])["pixel"].numpy().tolist()
    assert outputs[()] == outputs[("train",)]
    assert outputs[("train",)] != outputs[("test",)] != outputs[("train", "test")]


def write_facts(path, values, schema):
    assert set(values) == set(schema.names)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table([values[name] for name in schema.names], schema=schema))


def analyse(path, values, *, config, content=PICTURES, labels=()):
    """The graph of facts with these values, loaded by TensorFlow alone."""
    write_facts(path / "facts.arrow", values, facts_schema(config, content))
    options = parse_beam_options([], ours=())
    analyze_facts([path / "facts.arrow"], path, labels=labels, config=config, content=content, options=options)
    return tf.saved_model.load(str(path / "transform_fn"))


def test_rows_of_features_are_scaled_one_by_one(tmp_path):
    rows = np.random.default_rng(3).normal([5, -100, 0], [2, 30, 0.01], (50, 3)).astype(np.float32)
    values = {"features": rows.tolist(), "target": [[n / 2, -n] for n in range(50)]}
    config = make_config("raw", "out", labels={"kind": "regression", "length": 2})
    model = analyse(tmp_path, values, config=config, content=Content(row_length=3))
    outputs = model.transform_fn({"features": rows, "target": [[0.5, -2.0]]})
    np.testing.assert_allclose(outputs["features"], (rows - rows.mean(0)) / rows.std(0), rtol=1e-3, atol=1e-3)
    assert outputs["target"].numpy().tolist() == [[0.5, -2.0]]


def test_several_labels_come_as_a_sparse_tensor(tmp_path):
    values = {name: [[0.25, 0.5, 0.75]] * 4 for name in ("pixel", "pixel_square")}
    values["label_name"] = [[b"sky", b"sea"], [], [b"sea"], [b"sea", b"tree"]]
    config = make_config("raw", "out", labels={"kind": "multi"})
    model = analyse(tmp_path, values, config=config, labels=["sea", "sky", "tree"])
    given = tf.sparse.from_dense([["tree", "sea"], ["", ""], ["sky", "new"]])
    outputs = model.transform_fn({"label_name": given, "pixel": tf.zeros([0, 3]), "pixel_square": tf.zeros([0, 3])})
    assert tf.sparse.to_dense(outputs["label"], -9).numpy().tolist() == [[2, 0], [-9, -9], [1, -1]]
    assert read_label_frequencies(tmp_path / "transform_fn") == {"sea": 3, "sky": 1, "tree": 1}


def test_without_labels_the_graph_has_the_payload_alone(tmp_path):
    values = {name: [[0.25, 0.5, 0.75]] * 4 for name in ("pixel", "pixel_square")}
    model = analyse(tmp_path, values, config=make_config("raw", "out", labels={"kind": "none"}))
    (specs,), _ = model.transform_fn.structured_input_signature
    assert set(specs) == {"pixel", "pixel_square"}
    assert read_label_frequencies(tmp_path / "transform_fn") == {}


@pytest.mark.parametrize("buckets", [2, 8])
def test_the_number_of_buckets_is_obeyed(buckets, tmp_path):
    facts_file(tmp_path / "facts.arrow")
    columns = COLUMNS | {"bucket": {"type": "float", "scale": "buckets", "buckets": buckets}}
    analyze_facts(
        [tmp_path / "facts.arrow"],
        tmp_path,
        labels=["cat", "dog"],
        config=make_config("raw", "out", columns=columns),
        content=Content(),
        options=parse_beam_options([], ours=()),
    )
    outputs = apply(tmp_path / "transform_fn", bucket=[float(n) for n in range(ROWS)])
    assert set(outputs["bucket"].numpy().tolist()) == set(range(buckets))


def test_two_graphs_in_one_process_keep_their_labels(analysed, tmp_path):
    values = {name: [[0.25, 0.5, 0.75]] for name in ("pixel", "pixel_square")} | {"label_name": [[b"dog"]]}
    other = analyse(tmp_path, values, config=make_config("raw", "out"), labels=["dog", "cat"])
    assert apply(analysed[1], label_name=["dog", "ape", "cat"])["label"].numpy().tolist() == [2, 0, 1]
    nothing = {name: tf.zeros([0, 3]) for name in ("pixel", "pixel_square")}
    labels = other.transform_fn(nothing | {"label_name": tf.constant(["dog", "ape", "cat"])})["label"]
    assert labels.numpy().tolist() == [0, -1, 1]


KINDS = {
    "columns": (CONFIG, PICTURES),
    "multi": (make_config("raw", "out", labels={"kind": "multi"}), PICTURES),
    "none": (make_config("raw", "out", labels={"kind": "none"}), PICTURES),
    "rows": (make_config("raw", "out", labels={"kind": "regression", "length": 2}), Content(row_length=3)),
}
LENGTHS = {"pixel": 3, "pixel_square": 3, "features": 3, "target": 2}


def random_column(field, rows, rng):
    kind = field.type.value_type
    numbers = rng.normal(0, 50, (rows, LENGTHS.get(field.name, 1)))
    if kind == pa.binary():
        return [[b"%d" % number for number in row] for row in numbers.astype(int)]
    return numbers.astype(kind.to_pandas_dtype()).tolist()


def write_random_facts(folder, *, config, content):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    rows = 10_000 if config.scalar_columns else 100  # enough for the borders of buckets to depend on their order
    schema = facts_schema(config, content)
    for number in range(4):
        values = {field.name: random_column(field, rows, rng) for field in schema}
        write_facts(folder / f"train-{number:05d}.arrow", values, schema)


def analyse_kinds(facts, output, direction):
    """Analyses all kinds in this process, from the first kind and file or from the last."""
    step = int(direction)
    for kind in list(KINDS)[::step]:
        config, content = KINDS[kind]
        files = sorted(Path(facts, kind).iterdir())[::step]
        Path(output, kind).mkdir(parents=True)
        options = parse_beam_options([], ours=())
        analyze_facts(files, Path(output, kind), labels=["0", "7"], config=config, content=content, options=options)


def start_analysis(*arguments, seed):
    code = "import sys, test_transform; test_transform.analyse_kinds(*sys.argv[1:])"
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment)


def files_of(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_every_process_writes_the_same_bytes(tmp_path):
    for kind, (config, content) in KINDS.items():
        write_random_facts(tmp_path / "facts" / kind, config=config, content=content)
    one, two = tmp_path / "one", tmp_path / "in" / "another" / "place"
    processes = [
        start_analysis(tmp_path / "facts", one, 1, seed="1"),
        start_analysis(tmp_path / "facts", two, -1, seed="2"),
    ]
    assert [process.wait(250) for process in processes] == [0, 0]
    written = files_of(one)
    assert {name.split("/")[0] for name in written if name.endswith("transform_fn/saved_model.pb")} == set(KINDS)
    assert {name for name, content in files_of(two).items() if written.get(name) != content} == set()
    assert files_of(two).keys() == written.keys()
    assert not [name for name, content in written.items() if str(tmp_path).encode() in content]
