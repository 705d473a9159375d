"""The whole road with nothing replaced: raw files, the real build, the trainer, and a prediction for a raw file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_config, run_build
from pictures import encoded, picture
from PIL import Image
from sklearn.datasets import load_sample_image

from shards.manifest import read_manifest
from trainer.config import TrainConfig
from trainer.reading.dataset import Share, evaluation_dataset, evaluation_records, record_features
from trainer.reading.images import prepare
from trainer.reading.source import open_source
from trainer.reading.transform import Transform

ROOT = Path(__file__).parent.parent


def run(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_raw(root: Path) -> None:
    """Two classes that anything can learn, dark and bright parts of a photograph, in files as people have them."""
    photograph = Image.fromarray(load_sample_image("china.jpg"))
    for number in range(60):
        corner = number * 8, number * 37 % 300
        part = photograph.crop((*corner, corner[0] + 144, corner[1] + 120))
        for label, scale in (("bright", 1.0), ("dark", 0.3)):
            image = part.point(lambda value, scale=scale: int(value * scale))
            data, suffix = write_as_people_do(image, number % 4)
            path = root / label / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def write_as_people_do(image: Image.Image, way: int) -> tuple[bytes, str]:
    if way == 1:  # lying on its side, with a note that says so
        exif = Image.Exif()
        exif[0x0112] = 6
        return encoded(image.rotate(90, expand=True), quality=95, exif=exif), "jpg"
    if way == 2:
        image.putalpha(230)
        return encoded(image, "PNG"), "png"
    return (encoded(image, "WEBP", lossless=True), "webp") if way == 3 else (encoded(image, quality=95), "jpg")


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("road")
    write_raw(base / "raw")
    config = base / "train.yaml"
    config.write_text(
        f"dataset: {base}/dataset\noutput: {base}/run\nepochs: 6\nglobal_batch: 16\nevaluate_every_epochs: 6\n"
        "optimizer: {learning_rate: 0.01}\n"
    )
    run("pipelines", "build", "--source", base / "raw", "--output", base / "dataset", "--resize", "center_crop:64")
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
        road / "raw/dark/5.jpg",
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


def test_raw_files_are_served_as_they_were_built(road):
    """Through the build and the training input or through the exported signature: nearly equal pixels, one answer."""
    config = TrainConfig(dataset=str(road / "dataset"), output=str(road / "run"), epochs=1)
    source = open_source(config)
    split = source.split("validation")
    share = Share(worker=0, workers=1, batch=4, threads=1)
    read = evaluation_records(split, share, features=record_features(source), worker_batch=4)
    records = list(read.take(split.records).as_numpy_iterator())
    raw = tf.constant([(road / "raw" / record["key"].decode()).read_bytes() for record in records])
    stored = tf.constant([record["image"] for record in records])
    assert len({Path(record["key"].decode()).suffix for record in records}) == 3
    exported = tf.saved_model.load(str(road / "run" / "export"))
    built = np.stack([prepare(one, source.form) for one in stored]).astype(int)
    differences = np.abs(exported.preprocess(raw).numpy() - built).mean(axis=(1, 2, 3))
    assert differences.mean() <= 2  # most of it is what storing as JPEG has lost
    assert differences.max() <= 5
    answers = [exported.signatures["serving_default"](image_bytes=files)["label"].numpy() for files in (raw, stored)]
    assert answers[0].tolist() == answers[1].tolist()
    assert len(set(answers[0].tolist())) == 2


WEIGHTS = np.random.default_rng(1).normal(size=100)


def write_arrays(root: Path) -> None:
    """The example of so many articles: five files of 100 features, with labels that depend on them."""
    root.mkdir()
    generator = np.random.default_rng(2)
    for number in range(5):
        data = generator.normal(loc=3, scale=5, size=(200, 100)).astype(np.float32)
        np.savez(root / f"data_file_{number}.npz", data=data, labels=((data - 3) @ WEIGHTS > 0).astype(np.int64))


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("features")
    write_arrays(base / "raw")
    run("pipelines", "build", "--source", base / "raw/data_file_*.npz", "--output", base / "dataset")
    run("shards", "verify", base / "dataset")
    places = ("--dataset", base / "dataset", "--output", base / "run")
    assert "rows of 100 features in 2 classes" in run("trainer", "train", "configs/train_features.yaml", *places)
    run("trainer", "export", "configs/train_features.yaml", *places)
    return base


def test_features_are_learnt(features):
    *_, last = (json.loads(line) for line in (features / "run/metrics.jsonl").read_text().splitlines())
    assert (last["split"], last["step"]) == (
        "validation",
        20 * -(-read_manifest(features / "dataset").splits[0].records // 64),
    )
    assert last["accuracy"] > 0.75, "guessing gives 0.5"


def test_new_rows_are_recognised(features):
    rows = np.random.default_rng(3).normal(loc=3, scale=5, size=(300, 100)).astype(np.float32)
    np.save(features / "new.npy", rows)
    out = features / "answers.jsonl"
    run("trainer", "predict", features / "new.npy", "--model", features / "run/export", "--jsonl", out)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["row"] for answer in answers] == list(range(300))
    right = [
        answer["label"] == str(int(above)) for answer, above in zip(answers, (rows - 3) @ WEIGHTS > 0, strict=True)
    ]
    assert np.mean(right) > 0.75


def test_rows_are_normalised_as_the_build_found_them(features):
    config = TrainConfig(dataset=str(features / "dataset"), output="nowhere", epochs=1)
    source = open_source(config)
    share = Share(worker=0, workers=1, batch=32, threads=1)
    split = source.split("train")
    read = evaluation_records(split, share, features=record_features(source), worker_batch=32)
    rows = np.stack([record["features"] for record in read.take(split.records).as_numpy_iterator()])
    np.testing.assert_allclose(
        Transform(source.transform_directory)(rows), (rows - rows.mean(axis=0)) / rows.std(axis=0), rtol=1e-3, atol=1e-3
    )


def test_the_graph_of_several_labels_takes_pictures_alone(tmp_path):
    """Its label input is sparse, and training has no label names to feed."""
    lines = []
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number, size=(8, 8)), "PNG"))
        labels = [name for bit, name in enumerate(("left", "right")) if number >> bit & 1]
        lines.append(json.dumps({"path": f"{number}.png", "label": labels}) + "\n")
    (tmp_path / "listing.jsonl").write_text("".join(lines))
    sections = {"labels": {"kind": "multi"}, "image": {"resize": "exact:8"}, "splits": {"fractions": {"train": 1.0}}}
    run_build(make_config(tmp_path / "listing.jsonl", tmp_path / "dataset", **sections))
    config = TrainConfig(dataset=str(tmp_path / "dataset"), output="nowhere", epochs=1, global_batch=12)
    source, share = open_source(config), Share(worker=0, workers=1, batch=12, threads=1)
    batch = next(iter(evaluation_dataset(config, source, share, split="train")))
    assert sorted(map(tuple, batch["label"].numpy().tolist())) == sorted([(0, 0), (1, 0), (0, 1), (1, 1)] * 3)
    normalised = Transform(source.transform_directory)(batch["image"]).numpy()
    assert abs(normalised.mean()) < 0.05
