"""The exported model sees the pixels that training saw, and answers for files without any of our code."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from trainer_data import encode, make_config, random_pictures, write_dataset

from shards.errors import ShardsmithError, UsageError
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.learning.loop import train
from trainer.learning.state import build_state, restore
from trainer.reading.dataset import Share, evaluation_dataset, training_dataset
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace
from trainer.serving.export import export
from trainer.serving.lite import ask, export_lite
from trainer.serving.predict import find_files, load_served, predict

PICTURES = random_pictures(30)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    base = tmp_path_factory.mktemp("export")
    dataset = write_dataset(base / "data", {"train": PICTURES[:24], "validation": PICTURES[24:]})
    config = make_config(dataset, base / "run", steps=3, model={"arguments": {"width": 2}, "dropout": 0.5})
    train(config, open_source(config), open_workplace(config, Cluster(), threads=None))
    return config


@pytest.fixture(scope="module")
def exported(trained: TrainConfig) -> Path:
    return export(trained, open_source(trained), checkpoint=None).directory


def test_training_evaluation_and_serving_see_equal_tensors(trained: TrainConfig, exported: Path) -> None:
    share, source = Share(worker=0, workers=1, batch=6, threads=2), open_source(trained)
    fed = next(evaluation_dataset(trained, source, share, split="validation").as_numpy_iterator())["image"]
    data = [data for data, _ in PICTURES[24:]]
    np.testing.assert_array_equal(tf.saved_model.load(str(exported)).preprocess(data), fed)
    batches = islice(training_dataset(trained, source, share, start_step=0).as_numpy_iterator(), 4)
    trained_on = {picture.tobytes() for batch in batches for picture in batch["image"]}
    served = tf.saved_model.load(str(exported)).preprocess([data for data, _ in PICTURES[:24]]).numpy()
    assert {picture.tobytes() for picture in served} == trained_on


def test_serving_agrees_with_evaluation(trained: TrainConfig, exported: Path, tmp_path: Path) -> None:
    source, workplace = open_source(trained), open_workplace(trained, Cluster(), threads=None)
    state = build_state(trained, source, workplace.strategy)
    restore(state, str(Path(trained.output) / "checkpoints/step-3"))
    result = Evaluator(trained, source, workplace, state=state, split="validation").evaluate(3)
    answers = load_served(str(exported))(image_bytes=tf.constant([data for data, _ in PICTURES[24:]]))
    right = [answers["label"].numpy()[n].decode() == "abc"[label] for n, (_, label) in enumerate(PICTURES[24:])]
    assert sum(right) == result.correct
    chosen = [answers["probabilities"].numpy()[n, label] for n, (_, label) in enumerate(PICTURES[24:])]
    assert -np.log(chosen).mean() == pytest.approx(result.loss, rel=1e-4)


def test_signature_is_batch_first(exported: Path) -> None:
    answer = load_served(str(exported))(image_bytes=tf.constant([PICTURES[0][0]] * 2))
    assert {name: tuple(value.shape) for name, value in answer.items()} == {
        "label": (2,),
        "probability": (2,),
        "probabilities": (2, 3),
        "classes": (2, 3),
    }
    assert answer["classes"].numpy()[1].tolist() == [b"a", b"b", b"c"]
    np.testing.assert_allclose(answer["probabilities"].numpy().sum(axis=1), 1, rtol=1e-5)


def test_labels_are_an_asset(exported: Path) -> None:
    assert (exported / "assets/labels.txt").read_text() == "a\nb\nc\n"


def test_a_new_export_replaces_the_old(trained: TrainConfig, exported: Path) -> None:
    (exported / "stale").touch()
    export(trained, open_source(trained), checkpoint=str(Path(trained.output) / "checkpoints/step-3"))
    assert not (exported / "stale").exists()
    assert not list(exported.parent.glob(".export*"))


def test_bad_files_do_not_hold_up_the_others(exported: Path, tmp_path: Path) -> None:
    good, bad, large = tmp_path / "good.png", tmp_path / "bad.jpg", tmp_path / "large.jpg"
    good.write_bytes(PICTURES[0][0])
    bad.write_bytes(b"<html>")
    large.write_bytes(encode(np.full((50, 70, 3), 99), "JPEG"))
    missing = tmp_path / "missing.png"
    answers = list(predict(load_served(str(exported)), [str(p) for p in (good, bad, missing, large)]))
    assert [Path(answer.about["file"]).name for answer in answers] == [
        "good.png",
        "bad.jpg",
        "missing.png",
        "large.jpg",
    ]
    assert ["label" in (answer.answer or {}) for answer in answers] == [True, False, False, True]
    assert str(answers[1].error).startswith("cannot be decoded: Unknown image file format.")
    assert answers[2].error == "cannot be read: No such file or directory"


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no exported model at .*; make one with: python -m trainer export"):
        load_served(str(tmp_path))


def test_no_checkpoint(trained: TrainConfig, tmp_path: Path) -> None:
    config = trained.model_copy(update={"output": str(tmp_path)})
    with pytest.raises(ShardsmithError, match="has no checkpoint; train first"):
        export(config, open_source(config), checkpoint=None)


def test_pixels_are_another_way_to_ask(trained: TrainConfig, exported: Path) -> None:
    loaded = tf.saved_model.load(str(exported))
    files = tf.constant([data for data, _ in PICTURES[:5]])
    expected = loaded.signatures["serving_default"](image_bytes=files)
    found = loaded.signatures["pixels"](pixels=loaded.preprocess(files))
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


def test_folders_are_searched(exported: Path, tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/1.jpeg", "a/3.webp", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_files(load_served(str(exported)), ["first.tif", str(tmp_path)])
    assert found == ["first.tif", *(str(tmp_path / name) for name in ("a/3.webp", "b/1.jpeg", "b/2.PNG"))]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no file below .*empty ends with .bmp, .gif, .jpeg, .jpg, .png, .webp; name"):
        find_files(load_served(str(exported)), [str(tmp_path / "empty")])


def test_tflite_answers_like_the_network(trained: TrainConfig) -> None:
    exported = export(trained, open_source(trained), checkpoint=None, lite=True)
    assert exported.lite == Path(trained.output) / "model.tflite"
    assert exported.parity is not None
    assert (exported.parity.examples, exported.parity.same_first) == (6, 6)
    assert exported.parity.largest < 1e-5
    loaded = tf.saved_model.load(str(exported.directory))
    pixels = loaded.preprocess(tf.constant([data for data, _ in PICTURES[:3]]))
    given = ask(exported.lite.read_bytes(), pixels.numpy())
    np.testing.assert_allclose(given, loaded.signatures["pixels"](pixels=pixels)["probabilities"], atol=1e-5)


def test_tflite_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = np.eye(3, dtype=np.float32)
    monkeypatch.setattr("trainer.serving.lite.ask", lambda content, examples: examples[::-1])
    with pytest.raises(ShardsmithError, match="differs from the network: 1 of 3 answers agree, numbers within 1e"):
        export_lite(tf.identity, examples, tmp_path / "model.tflite")
    assert not list(tmp_path.iterdir())


def test_an_operation_that_tflite_lacks_is_told(tmp_path: Path) -> None:
    rows = np.ones((2, 4), np.float32)
    with pytest.raises(ShardsmithError, match="cannot be converted to TFLite: .*; the SavedModel has been written"):
        export_lite(lambda batch: tf.math.digamma(batch), rows, tmp_path / "model.tflite")
