"""Columns as a second input: learnt from, scaled as the build says, exported by name and asked about."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer_data import encode, make_config, random_rows, write_dataset

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.learning.loop import train
from trainer.learning.model import build_model
from trainer.learning.state import build_state
from trainer.reading.checks import check_training
from trainer.reading.dataset import Share, evaluation_dataset
from trainer.reading.source import open_records, open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace
from trainer.serving.export import export
from trainer.serving.predict import load_served, predict, predict_records

NAMES = ["weight_kg", "weight", "pair"]  # `weight` is also what we call how much an example counts


def told(label: int) -> dict[str, list[Any]]:
    """Only `weight_kg` tells the label; the transform halves it, and knows nothing of the others."""
    return {"weight_kg": [4.0 * label - 4.0], "weight": [7], "pair": [1.5, -2.5]}


def grey(count: int) -> list[tuple[bytes, int]]:
    return [(encode(np.full((8, 8, 3), 120)), number % 3) for number in range(count)]


def unrelated_rows(count: int) -> list[tuple[list[float], int]]:
    return [(row, number % 3) for number, (row, _) in enumerate(random_rows(count))]


@pytest.fixture(scope="module", params=["pictures", "rows"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    examples = grey(90) if request.param == "pictures" else unrelated_rows(90)
    splits = {"train": examples[:72], "validation": examples[72:]}
    return write_dataset(tmp_path_factory.mktemp(request.param), splits, columns=told)


def configure(dataset: Path, output: Path, **values: Any) -> TrainConfig:
    rows = "rows" in str(dataset)
    arguments = {"hidden": [16]} if rows else {"width": 2}
    base = {"model": {"columns": NAMES, "arguments": arguments}, "optimizer": {"learning_rate": 0.03}}
    lengths = {"steps": None, "epochs": 15, "evaluate_every_epochs": 15, "global_batch": 12}
    return make_config(dataset, output, **base | lengths | values)


def test_a_label_that_only_the_column_tells(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path)
    source = open_source(config)
    outcome = train(config, source, open_workplace(config, Cluster(), threads=None))
    assert outcome.evaluation is not None
    assert outcome.evaluation.metrics["accuracy"] > 0.9, "guessing gives 0.33"
    served = load_served(str(export(config, source, checkpoint=None).directory))
    takes = "rows of 6 features" if "rows" in str(dataset) else "pictures"
    assert str(served) == f"takes {takes} and columns pair, weight, weight_kg"
    answers = list(predict_records(served, open_records(str(dataset), "validation")))
    right = [(each.answer or {})["label"] == "abc"[number % 3] for number, each in enumerate(answers)]
    assert (len(right), sum(right)) == (18, outcome.evaluation.correct)
    with pytest.raises(UsageError, match="and columns pair, weight, weight_kg, which files do not have; .*--dataset"):
        predict(served, ["a.png"])
    with pytest.raises(UsageError, match="a TFLite model takes pictures or rows alone; leave out --tflite"):
        export(config, source, checkpoint=None, lite=True)
    bare = write_dataset(tmp_path / "bare", {"all": grey(3) if takes == "pictures" else unrelated_rows(3)})
    with pytest.raises(UsageError, match="'pair' is not a column of .*bare"):
        predict_records(served, open_records(str(bare), "all"))


def test_columns_are_scaled_and_joined_in_order(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path)
    source = open_source(config)
    share = Share(worker=0, workers=1, batch=6, threads=1)
    batch = next(iter(evaluation_dataset(config, source, share, split="validation")))
    assert batch["weight"].numpy().tolist() == [1.0] * 6, "the column of this name is another thing"
    state = build_state(config, source, tf.distribute.get_strategy())
    given, columns = state.given(batch)
    assert given.shape[0] == 6
    expected = [[(4.0 * label - 4.0) / 2, 7.0, 1.5, -2.5] for label in (0, 1, 2, 0, 1, 2)]
    np.testing.assert_array_equal(columns, np.array(expected, np.float32))


def test_the_exported_signature_has_them_by_name(dataset: Path, tmp_path: Path) -> None:
    config = configure(dataset, tmp_path, steps=1, epochs=None, evaluate_every_epochs=None)
    train(config, open_source(config), open_workplace(config, Cluster(), threads=None))
    served = tf.saved_model.load(str(export(config, open_source(config), checkpoint=None).directory))
    specs = served.signatures["serving_default"].structured_input_signature[1]
    shapes = {name: (spec.shape.as_list(), spec.dtype) for name, spec in specs.items() if name in NAMES}
    assert shapes == {
        "weight_kg": ([None], tf.float32),
        "weight": ([None], tf.int64),
        "pair": ([None, 2], tf.float32),
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ["age"],
            "'age' is not a column of .* with a fixed number of numbers; it has height, pair, weight, weight_kg, w",
        ),
        (["key"], "'key' is not a column of "),
        (["label"], "'label' is not a column of "),
        (["pair", "pair"], "'pair' is named twice; name each column once"),
    ],
)
def test_columns_that_cannot_be_used(columns: list[str], message: str, tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"train": grey(3)}, columns=told, transform=False)
    (tmp_path / "transform_fn").mkdir()
    (tmp_path / "transform_fn/saved_model.pb").touch()
    with pytest.raises(UsageError, match=message):
        open_source(make_config(data, model__columns=columns))


def test_columns_are_not_mixed(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"train": grey(12)}, columns=told)
    config = make_config(data, model__columns=["pair"], augment__mixup=0.2, evaluate_every_epochs=None)
    with pytest.raises(UsageError, match="augment.mixup.*: pictures would be mixed, but not the columns that belong"):
        check_training(config, open_source(config), workers=1)


def with_columns(*, features: int, classes: int, dropout: float, columns: int) -> keras.Model:
    row, extra = keras.Input((features,)), keras.Input((columns,))
    return keras.Model([row, extra], keras.layers.Dense(classes)(keras.layers.Concatenate()([row, extra])))


def without_columns(*, features: int, classes: int, dropout: float) -> keras.Model:
    return keras.Sequential([keras.Input((features,)), keras.layers.Dense(classes)])


def test_functions_get_columns_only_if_they_want_them() -> None:
    def build(name: str, **shape: int) -> Any:
        return build_model(make_config("", model__name=f"{__name__}:{name}").model, features=4, classes=2, **shape)

    assert build("with_columns", columns=3).weights[0].shape == (7, 2)
    assert build("without_columns").weights[0].shape == (4, 2)
    with pytest.raises(UsageError, match="model.columns: .*without_columns takes none; give the function an argument"):
        build("without_columns", columns=3)


def test_columns_join_before_the_head() -> None:
    model = make_config("", model={"name": "MobileNetV2", "arguments": {"alpha": 0.35}}).model
    built = build_model(model, image_size=(32, 32), classes=3, columns=2)
    assert built.get_layer("head").kernel.shape == (1280 + 2, 3)
    small = build_model(make_config("").model, image_size=(8, 8), classes=3, columns=2)
    assert small.get_layer("head").kernel.shape == (64 + 2, 3)
    rows = build_model(make_config("").model, features=5, classes=3, columns=2)
    assert rows.get_layer("dense1").kernel.shape == (5 + 2, 64)
