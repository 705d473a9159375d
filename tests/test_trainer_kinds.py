"""Rows of numbers instead of pictures, and every kind of label: learnt, resumed, exported and asked."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from tensorflow.python.framework import config as tf_config
from trainer_data import ROW_MEAN, ROW_STD, make_config, random_pictures, random_rows, write_dataset, write_transform

from shards.errors import ShardsmithError, UsageError
from shards.order import global_batch
from trainer.__main__ import main
from trainer.config import TrainConfig
from trainer.learning.loop import Outcome, train
from trainer.learning.model import build_model
from trainer.reading.dataset import Share, evaluation_dataset, training_dataset
from trainer.reading.source import open_records, open_source
from trainer.reading.transform import Transform
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace
from trainer.serving.export import export
from trainer.serving.predict import Prediction, load_served, predict, predict_records

KINDS = ("single", "multi", "regression")
LABELS = {"single": ("no", "yes"), "multi": ("a", "b", "c"), "regression": (), "none": ()}
TRAIN, TEST = slice(0, 160), slice(160, 200)


def write_rows(directory: Path, kind: str) -> Path:
    rows = random_rows(200, kind=kind)
    return write_dataset(directory, {"train": rows[TRAIN], "test": rows[TEST]}, kind=kind, labels=LABELS[kind])


def configure(dataset: Path, output: Path, **values: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "global_batch": 20,
        "splits": {"evaluate": "test"},
        "model": {"arguments": {"hidden": [16]}},
        "optimizer": {"learning_rate": 0.02},
        "log_every": 40,
    }
    return make_config(dataset, output, **base | values)


def run(config: TrainConfig) -> Outcome:
    return train(config, open_source(config), open_workplace(config, Cluster(), threads=None))


@dataclass(frozen=True)
class Trained:
    kind: str
    config: TrainConfig
    outcome: Outcome
    model: Path


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    base = tmp_path_factory.mktemp(request.param)
    config = configure(
        write_rows(base / "data", request.param), base / "run", steps=None, epochs=20, evaluate_every_epochs=10
    )
    outcome = run(config)
    return Trained(request.param, config, outcome, export(config, open_source(config), checkpoint=None).directory)


def test_rows_are_learnt(trained: Trained) -> None:
    assert trained.outcome.evaluation is not None
    metrics = trained.outcome.evaluation.metrics
    assert trained.outcome.evaluation.examples == 40
    if trained.kind == "regression":
        assert metrics["mae"] < 0.25, "guessing the mean errs by about 1"
    else:
        assert metrics["accuracy" if trained.kind == "single" else "f1"] > 0.85, "guessing gives about 0.5"


def test_metrics_have_the_names_of_their_kind(trained: Trained) -> None:
    lines = [json.loads(line) for line in (Path(trained.config.output) / "metrics.jsonl").read_text().splitlines()]
    score = {"single": "accuracy", "multi": "exact_match", "regression": "mae"}[trained.kind]
    means = ["loss", score, "learning_rate", "rows_per_second", "waiting", "skipped_examples"]
    assert list(lines[0]) == ["split", "step", "epoch", *means]
    judged = {
        "single": ["accuracy", "macro_f1", "ece"],
        "multi": ["f1", "precision", "recall", "macro_f1", "map", score],
        "regression": ["mae", "rmse", "r2"],
    }
    evaluation = next(line for line in lines if line["split"] == "test")
    assert list(evaluation) == ["split", "step", "loss", *judged[trained.kind], "examples"]
    assert lines[-2]["loss"] < lines[0]["loss"]


def test_batches_hold_what_the_records_hold(trained: Trained) -> None:
    share = Share(worker=0, workers=1, batch=20, threads=2)
    batches = evaluation_dataset(trained.config, open_source(trained.config), share, split="test")
    first, second = islice(batches.as_numpy_iterator(), 2)
    rows = random_rows(200, kind=trained.kind)[TEST]
    fed = np.concatenate([first["features"], second["features"]])
    np.testing.assert_array_equal(fed, np.array([row for row, _ in rows], np.float32))
    name = "target" if trained.kind == "regression" else "label"
    targets = np.concatenate([first[name], second[name]])
    if trained.kind == "multi":
        expected = [[float(label in labels) for label in range(3)] for _, labels in rows]
        assert [0.0, 0.0, 0.0] in expected, "some rows must have no label at all"
    else:
        expected = [label for _, label in rows]
    np.testing.assert_array_equal(targets, np.array(expected, targets.dtype))


def test_serving_agrees_with_evaluation(trained: Trained) -> None:
    records = open_records(trained.config.dataset, "test")
    answers = list(predict_records(load_served(str(trained.model)), records))
    assert [each.about for each in answers] == [{"key": f"test/{number}"} for number in range(40)]
    evaluation: Any = trained.outcome.evaluation
    truth = [label for _, label in random_rows(200, kind=trained.kind)[TEST]]
    given = [each.answer or {} for each in answers]
    if trained.kind == "single":
        assert sum(one["label"] == LABELS["single"][label] for one, label in zip(given, truth, strict=True)) == (
            evaluation.correct
        )
    elif trained.kind == "multi":
        named = [["abc"[label] for label in labels] for labels in truth]
        assert sum(one["labels"] == labels for one, labels in zip(given, named, strict=True)) == evaluation.exact
    else:
        errors = np.abs(np.array([one["prediction"] for one in given]) - truth).mean(axis=0)
        np.testing.assert_allclose(errors, [each.mae for each in evaluation.targets], rtol=1e-5)


def test_npy_files_are_asked_row_by_row(trained: Trained, tmp_path: Path) -> None:
    rows = np.array([row for row, _ in random_rows(200, kind=trained.kind)[TEST]], np.float32)
    np.save(tmp_path / "many.npy", rows)
    np.save(tmp_path / "one.npy", rows[3].astype(np.float64))
    np.save(tmp_path / "wide.npy", np.zeros([2, 7]))
    np.save(tmp_path / "words.npy", np.array([["x"] * 6]))
    (tmp_path / "not.npy").write_bytes(b"1,2,3")
    names = ["many", "one", "wide", "words", "not", "missing"]
    answers = list(predict(load_served(str(trained.model)), [str(tmp_path / f"{name}.npy") for name in names]))
    assert [each.about.get("row") for each in answers] == [*range(40), 0, None, None, None, None]
    assert answers[40].answer == answers[3].answer
    wide, words, no_array, missing = (str(each.error) for each in answers[41:])
    assert wide == "is not a .npy file of rows of 6 numbers: it has shape (2, 7) and type float64"
    assert "it has shape (1, 6) and type <U1" in words
    assert no_array.startswith("is not a .npy file of rows of 6 numbers: ")
    assert missing == "cannot be read: No such file or directory"
    by_record = predict_records(load_served(str(trained.model)), open_records(trained.config.dataset, "test"))
    assert [each.answer for each in answers[:40]] == [each.answer for each in by_record]


def test_signatures(trained: Trained) -> None:
    served = load_served(str(trained.model))
    answer = served(features=tf.zeros([2, 6]))
    shapes = {name: tuple(value.shape) for name, value in answer.items()}
    assert (
        shapes
        == {
            "single": {"label": (2,), "probability": (2,), "probabilities": (2, 2), "classes": (2, 2)},
            "multi": {"probabilities": (2, 3), "classes": (2, 3)},
            "regression": {"prediction": (2, 2)},
        }[trained.kind]
    )
    assert (trained.model / "assets/labels.txt").exists() == (trained.kind != "regression")
    assert str(served) == "takes rows of 6 features"


def test_command_line(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(trained.config.model_dump(mode="json")))
    goal = {"single": "in 2 classes", "multi": "with 3 label(s)", "regression": "with 2 target(s)"}[trained.kind]
    assert main(["train", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"training mlp on 160 rows of 6 features {goal}, 160 steps of 20" in said
    assert main(["evaluate", str(path), "--split", "train"]) == 0
    result = json.loads((Path(trained.config.output) / "evaluation-train.json").read_text())
    assert result["examples"] == 160
    headline = {"single": "accuracy", "multi": "f1", "regression": "mae"}[trained.kind]
    assert f"{headline} {result[headline]:.4f}" in capsys.readouterr().out
    assert main(["export", str(path)]) == 0
    assert "(takes features, gives " in capsys.readouterr().out


def test_predict_over_a_dataset(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unlabelled = write_dataset(tmp_path / "data", {"all": random_rows(25, kind="none")}, kind="none", transform=False)
    command = ["predict", "--dataset", str(unlabelled), "--model", str(trained.model)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "all/19" in said
    assert "all/20" not in said
    assert "the first 20 of 25 records; --jsonl OUT writes all" in said
    assert main([*command, "--split", "all", "--jsonl", str(tmp_path / "out.jsonl")]) == 0
    assert f"made     {tmp_path / 'out.jsonl'} with 25 predictions" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == [f"all/{number}" for number in range(25)]
    answer = {"single": {"label", "probability", "probabilities"}, "multi": {"labels", "probabilities"}}
    assert all(line.keys() == {"key"} | answer.get(trained.kind, {"prediction"}) for line in lines)


@pytest.fixture
def _determinism() -> Iterator[None]:
    yield
    tf_config.disable_op_determinism()


@pytest.mark.usefixtures("_determinism")
def test_rows_resume_bit_by_bit(tmp_path: Path) -> None:
    dataset = write_rows(tmp_path / "data", "multi")
    values: dict[str, Any] = {
        "deterministic": True,
        "evaluate_every_epochs": None,
        "model": {"arguments": {"hidden": [4]}, "dropout": 0.3},
    }
    whole = run(configure(dataset, tmp_path / "whole", steps=10, **values))
    first = run(configure(dataset, tmp_path / "parts", steps=3, **values))
    rest = run(configure(dataset, tmp_path / "parts", steps=10, **values))
    assert (rest.first_step, rest.last_step) == (3, 10)
    assert rest.weights == whole.weights != first.weights


def test_training_order_is_that_of_pictures(tmp_path: Path) -> None:
    """The order knows records, not what is in them: the same numbers decide it for rows."""
    config = configure(write_rows(tmp_path, "single"), "nowhere")
    share = Share(worker=0, workers=1, batch=20, threads=1)
    dataset = training_dataset(config, open_source(config), share, start_step=2)
    rows = [row for batch in islice(dataset.as_numpy_iterator(), 2) for row in batch["features"].tolist()]
    stored = [np.array(row, np.float32).tolist() for row, _ in random_rows(200)[TRAIN]]
    source = open_source(config).split("train")
    expected = [n for step in (2, 3) for n in global_batch(source.shard_records, config.order, step=step)]
    assert rows == [stored[number] for number in expected]


@pytest.mark.parametrize("kind", ["single", "multi", "regression", "none"])
def test_transform_normalises_rows(kind: str, tmp_path: Path) -> None:
    write_transform(tmp_path, kind=kind, rows=4)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_allclose(Transform(tmp_path)(rows), (rows - ROW_MEAN) / ROW_STD, rtol=1e-6)


def test_several_labels_per_picture(tmp_path: Path) -> None:
    pictures = [(data, [label for label in range(3) if label <= n]) for data, n in random_pictures(30)]
    dataset = write_dataset(tmp_path / "data", {"train": pictures[:24], "test": pictures[24:]}, kind="multi")
    config = configure(dataset, tmp_path / "run", steps=2, global_batch=6, model={"arguments": {"width": 2}})
    outcome = run(config)
    assert outcome.evaluation is not None
    assert outcome.evaluation.as_dict()["labels"][0]["examples"] == 6, "every picture has the first label"
    served = load_served(str(export(config, open_source(config), checkpoint=None).directory))
    assert str(served) == "takes pictures"
    (tmp_path / "a.png").write_bytes(pictures[0][0])
    [asked] = predict(served, [str(tmp_path / "a.png")])
    [first, *_] = predict_records(served, open_records(str(dataset), "test"))
    assert asked.answer is not None
    assert list(asked.answer["probabilities"]) == ["a", "b", "c"]
    assert first == Prediction({"key": "test/0"}, first.answer)


def user_rows(*, features: int, classes: int, dropout: float, units: int) -> keras.Model:
    layers = [keras.layers.Dense(units, name="mine"), keras.layers.Dropout(dropout), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((features,)), *layers])


def test_models_for_rows() -> None:
    config = make_config("", model__arguments={"hidden": [5, 3]}, model__dropout=0.25).model
    built = build_model(config, features=7, classes=2)
    assert [weight.shape for weight in built.weights] == [(7, 5), (5,), (5, 3), (3,), (3, 2), (2,)]
    assert [layer.rate for layer in built.layers if hasattr(layer, "rate")] == [0.25, 0.25]
    config = make_config("", model__name=f"{__name__}:user_rows", model__arguments={"units": 9}).model
    assert build_model(config, features=7, classes=2).get_layer("mine").units == 9


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "small_cnn",
            {"features": 7},
            "'small_cnn' takes pictures, the dataset has rows of numbers; use mlp or module:",
        ),
        ("MobileNetV2", {"features": 7}, "'MobileNetV2' takes pictures, the dataset has rows of numbers"),
        ("mpl", {"features": 7}, "'mpl' is not known; did you mean 'mlp'?"),
        ("mlp", {"image_size": (8, 8)}, "'mlp' takes rows of numbers, the dataset has pictures; use small_cnn"),
    ],
)
def test_models_that_do_not_fit(name: str, shape: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        build_model(make_config("", model__name=name).model, classes=2, **shape)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"augment": {"flip": True, "shift": 2}},
            "augment.flip, augment.shift: for pictures only, and .* has rows of 6 f",
        ),
        ({"model": {"image_size": 8}}, "model.image_size: for pictures only, and .*; remove the setting"),
    ],
)
def test_settings_of_pictures_are_refused_for_rows(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    dataset = write_rows(tmp_path, "single")
    with pytest.raises(UsageError, match=message):
        open_source(configure(dataset, "nowhere", **values))


def test_nothing_is_learnt_without_labels(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, {"train": random_rows(30, kind="none")}, kind="none")
    with pytest.raises(ShardsmithError, match="has no labels .*python -m trainer predict --dataset .* --model EXPORT"):
        open_source(configure(dataset, "nowhere"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.npy", "--dataset", "x"], "predict needs either files or --dataset"),
        ([], "predict needs either files or --dataset"),
        (["a.npy", "--split", "test"], "--split is the split of a dataset; give --dataset too, or leave it out"),
        (["--dataset", "{data}"], "has splits train, test; choose one with --split"),
        (["--dataset", "{data}", "--split", "no"], "the dataset has no split 'no'; it has train, test"),
    ],
)
def test_predict_refusals(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = random_rows(4)
    data = write_dataset(tmp_path, {"train": rows, "test": rows}, transform=False)
    assert main(["predict", "--model", "x", *(each.format(data=data) for each in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_model_and_a_dataset_that_do_not_fit(trained: Trained, tmp_path: Path) -> None:
    served = load_served(str(trained.model))
    pictures = write_dataset(tmp_path / "pictures", {"all": random_pictures(3)}, transform=False)
    with pytest.raises(UsageError, match="the model takes rows of 6 features, but .*pictures has pictures"):
        predict_records(served, open_records(str(pictures), None))
    wide = write_dataset(tmp_path / "wide", {"all": random_rows(3, length=8)}, transform=False)
    with pytest.raises(UsageError, match="the model takes rows of 6 features, but .*wide has rows of 8 features"):
        predict_records(served, open_records(str(wide), None))


def test_predict_over_a_damaged_dataset(trained: Trained, tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"all": random_rows(3)}, shards=1, transform=False)
    shard = data / "all/all-00000.tfrecord"
    shard.write_bytes(shard.read_bytes().replace(b"features", b"futures!"))
    with pytest.raises(ShardsmithError, match=r"record 0 of .* \(key all/0\): data fails its checksum; .*repair`$"):
        list(predict_records(load_served(str(trained.model)), open_records(str(data), None)))


def test_another_model_is_refused(tmp_path: Path) -> None:
    class Other(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def serve(self, x: Any) -> Any:
            return {"y": x}

    other = Other()
    tf.saved_model.save(other, str(tmp_path), signatures={"serving_default": other.serve})
    with pytest.raises(UsageError, match="is not one that `python -m trainer export` writes"):
        load_served(str(tmp_path))
