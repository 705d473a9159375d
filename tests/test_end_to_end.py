"""The whole road with nothing replaced: raw files, the real build, the trainer, and a prediction for a raw file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from pictures import encoded, picture

from shards.manifest import read_manifest
from trainer.config import TrainConfig
from trainer.dataset import Share, evaluation_records, record_features
from trainer.images import prepare
from trainer.source import open_source
from trainer.transform import Transform

ROOT = Path(__file__).parent.parent


def run(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_raw(root: Path) -> None:
    """Two classes that anything can learn: dark and bright pictures."""
    for number in range(60):
        for label, scale in (("bright", 1.0), ("dark", 0.3)):
            image = picture(number, size=(48, 40)).point(lambda value, scale=scale: int(value * scale))
            path = root / label / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(image, quality=95))


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("road")
    write_raw(base / "raw")
    config = base / "train.yaml"
    config.write_text(
        f"dataset: {base}/dataset\noutput: {base}/run\nepochs: 6\nglobal_batch: 16\nevaluate_every_epochs: 6\n"
        "optimizer: {learning_rate: 0.01}\n"
    )
    run("pipelines", "build", "--source", base / "raw", "--output", base / "dataset", "--resize", "center_crop:32")
    run("shards", "verify", base / "dataset")
    run("trainer", "train", config)
    run("trainer", "export", config)
    return base


def test_the_model_has_learnt(road):
    text = run("trainer", "evaluate", road / "train.yaml", "--split", "test")
    records = read_manifest(road / "dataset").split("test").records
    assert f"of {records})" in text
    result = json.loads((road / "run" / "evaluation-test.json").read_text())
    assert result["accuracy"] > 0.8


def test_a_raw_file_is_recognised(road):
    out = road / "answers.jsonl"
    run(
        "trainer",
        "predict",
        road / "raw/dark/7.jpg",
        road / "raw/bright/8.jpg",
        "--model",
        road / "run/export",
        "--jsonl",
        out,
    )
    assert [json.loads(line)["label"] for line in out.read_text().splitlines()] == ["dark", "bright"]


def test_training_and_serving_get_identical_tensors(road):
    """The same stored picture through the training input and through the exported model's own graph, bit for bit."""
    config = TrainConfig(dataset=str(road / "dataset"), output=str(road / "run"), epochs=1)
    source = open_source(config)
    share = Share(worker=0, workers=1, batch=4, threads=1)
    read = evaluation_records(source.split("test"), share, features=record_features(source), worker_batch=4)
    records = list(read.take(4).as_numpy_iterator())
    data = tf.constant([record["image"] for record in records])
    fed = tf.stack([prepare(one, source.form) for one in data])
    trained_on = Transform(road / "dataset" / "transform_fn")(fed)

    exported = tf.saved_model.load(str(road / "run" / "export"))
    served_pixels = exported.preprocess(data)
    np.testing.assert_array_equal(served_pixels, fed)
    inner = exported.transform.loaded.transform_fn  # the graph that the export carries inside
    (specs,), _ = inner.structured_input_signature
    feeds = {name: tf.zeros([0, *spec.shape[1:]], spec.dtype) for name, spec in specs.items()}
    feeds["pixel"] = tf.reshape(tf.cast(served_pixels, tf.float32) / 255.0, [-1, 3])
    served = tf.reshape(inner(feeds)["pixel"], tf.shape(served_pixels))
    np.testing.assert_array_equal(served, trained_on)
    assert float(tf.reduce_mean(tf.abs(trained_on))) > 0.1  # and it is not all zeros
