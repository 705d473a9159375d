"""Weights from elsewhere: what fits is taken, what is frozen stays, and what cannot be is said before training."""

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.learning.initial import take_initial
from trainer.learning.loop import Outcome, train
from trainer.learning.model import build_model
from trainer.learning.state import State, build_state, restore
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace
from trainer.serving.export import export

BODY = [f"{layer}{block}/{name}" for block in (1, 2, 3) for layer, name in (("conv", "kernel"), ("norm", "gamma"))]


def configure(dataset: Path, output: Path, **model: Any) -> TrainConfig:
    values = {"model": {"arguments": {"width": 2}} | model, "evaluate_every_epochs": None}
    return make_config(dataset, output, steps=3, optimizer={"learning_rate": 0.05, "ema": 0.5}, **values)


def run(config: TrainConfig) -> Outcome:
    return train(config, open_source(config), open_workplace(config, Cluster(), threads=None))


def begin(config: TrainConfig) -> State:
    return build_state(config, open_source(config), tf.distribute.get_strategy())


def weights(model: keras.Model) -> dict[str, Any]:
    return {weight.path: weight.numpy() for weight in model.weights}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A finished run on three classes, with averaged weights and an export."""
    base = tmp_path_factory.mktemp("old")
    config = configure(write_dataset(base / "data", {"train": random_pictures(24)}), base / "run")
    run(config)
    export(config, open_source(config), checkpoint=None)
    return config


@pytest.fixture(scope="module")
def trained(old: TrainConfig) -> keras.Model:
    """What was judged and exported: the averaged weights."""
    state = begin(old)
    restore(state, f"{old.output}/checkpoints/step-3")
    state.judged.save(f"{old.output}/model.keras")
    state.judged.save_weights(f"{old.output}/model.weights.h5")
    return state.judged


@pytest.fixture(scope="module")
def other_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = ("a", "b", "c", "d", "e")
    return write_dataset(tmp_path_factory.mktemp("new"), {"train": random_pictures(18)}, labels=labels)


@pytest.mark.parametrize("form", ["", "checkpoints/step-3", "export", "model.keras", "model.weights.h5"])
def test_all_that_fits_is_taken(
    form: str, old: TrainConfig, trained: keras.Model, other_classes: Path, tmp_path: Path
) -> None:
    path = f"{old.output}/{form}".rstrip("/")
    model = begin(configure(other_classes, tmp_path)).model
    fresh = weights(model)
    taken = take_initial(model, path)
    assert str(taken) == f"15 of 17 weights from {path}; fresh: head/kernel, head/bias"
    assert set(BODY) < set(taken.taken)
    now, theirs = weights(model), weights(trained)
    assert now.keys() == theirs.keys()
    for name in now:
        np.testing.assert_array_equal(now[name], (fresh if name.startswith("head") else theirs)[name], err_msg=name)
    assert theirs["norm1/moving_mean"].any(), "moving statistics are weights too"


def test_the_same_classes_take_everything(old: TrainConfig, trained: keras.Model, tmp_path: Path) -> None:
    model = begin(configure(Path(old.dataset), tmp_path)).model
    assert str(take_initial(model, old.output)) == f"17 of 17 weights from {old.output}"
    for one, other in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_begins_with_them_and_needs_them_no_more(
    old: TrainConfig, trained: keras.Model, other_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(old.output, tmp_path / "old")
    config = configure(other_classes, tmp_path / "run", initial=str(tmp_path / "old"), freeze=["body"])
    outcome = run(config)
    assert f"initial  15 of 17 weights from {tmp_path / 'old'}; fresh: head/kernel" in capsys.readouterr().out
    state = begin(config)
    start = weights(state.model)
    restore(state, outcome.checkpoint)
    for model in (state.model, state.judged):
        for name, value in weights(model).items():
            if name.startswith("head"):
                assert np.abs(value - start[name]).max() > 1e-3, name
            else:
                np.testing.assert_allclose(value, weights(trained)[name], rtol=1e-6, err_msg=f"{name} is frozen")
    assert [weight.path for weight in state.model.trainable_variables] == ["head/kernel", "head/bias"]
    shutil.rmtree(tmp_path / "old")
    assert run(config.model_copy(update={"steps": 4})).first_step == 3
    assert "initial" not in capsys.readouterr().out
    export(config, open_source(config), checkpoint=None)


def test_layers_are_frozen_by_name(other_classes: Path, tmp_path: Path) -> None:
    model = begin(configure(other_classes, tmp_path, freeze=["conv[12]", "norm1"])).model
    assert {layer.name for layer in model.layers if not layer.trainable} == {"conv1", "conv2", "norm1"}
    pictures = tf.random.stateless_uniform([4, 8, 8, 3], [1, 2])
    model(pictures, training=True)
    assert not model.get_layer("norm1").moving_mean.numpy().any(), "frozen statistics stay as they are"
    assert model.get_layer("norm2").moving_mean.numpy().any()


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (
            ["conv7*"],
            "model.freeze: 'conv7*' fits no layer with weights; there are conv1, norm1, conv2, norm2, conv3, norm3, he",
        ),
        (["*"], "model.freeze leaves nothing to train; name fewer layers"),
    ],
)
def test_freezing_that_makes_no_sense(freeze: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        build_model(make_config("", model__freeze=freeze).model, image_size=(8, 8), classes=3)
    assert message in str(raised.value)


def test_frozen_layers_without_weights_are_refused(old: TrainConfig, other_classes: Path, tmp_path: Path) -> None:
    config = configure(other_classes, tmp_path, initial=old.output, freeze=["head"])
    message = (
        "model.freeze keeps head/kernel, head/bias as they are, but .* has no such weights: they would stay random"
    )
    with pytest.raises(UsageError, match=message):
        run(config)


def _write_foreign(path: Path, **content: Any) -> None:
    tf.train.Checkpoint(**content).write(str(path / "variables/variables"))
    (path / "saved_model.pb").touch()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there are no weights at {path}; give the output of another run, one of its checkpoints"),
        (
            "checkpoint",
            "no weight of {path} fits this network by name and shape; there: other/bias 1, other/kernel 2x1; here: con",
        ),
        ("foreign", "foreign/variables/variables is not a checkpoint or export of this trainer"),
        ("damaged", "checkpoint .*damaged is damaged: saved.json cannot be used: "),
        ("text.keras", "text.keras cannot be loaded: "),
        ("text.weights.h5", "text.weights.h5 cannot be loaded: "),
    ],
)
def test_what_cannot_be_taken(content: str | None, message: str, other_classes: Path, tmp_path: Path) -> None:
    path = tmp_path / (content or "nothing")
    if content == "checkpoint":
        network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="other")])
        _write_foreign(path, model=network)
    elif content == "foreign":
        _write_foreign(path, step=tf.Variable(1))
    elif content == "damaged":
        path.mkdir()
        (path / "saved.json").write_text("{")
    elif content:
        path.write_text("no network")
    config = configure(other_classes, tmp_path / "run", initial=str(path))
    with pytest.raises(UsageError, match=message.format(path=path)):
        run(config)
    assert not (tmp_path / "run/run.json").exists(), "the path can be mended without another output"


def test_keras_applications_take_a_file(tmp_path: Path) -> None:
    body = keras.applications.MobileNetV2(
        alpha=0.35, include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
    )
    path = tmp_path / "body.weights.h5"
    body.save_weights(path)
    arguments = {"alpha": 0.35, "weights": str(path)}
    config = make_config("", model={"name": "MobileNetV2", "arguments": arguments}).model
    built = build_model(config, image_size=(32, 32), classes=3)
    np.testing.assert_array_equal(built.get_layer("Conv1").get_weights()[0], body.get_layer("Conv1").get_weights()[0])
    config = make_config("", model={"name": "MobileNetV2", "arguments": {"weights": "nowhere.h5"}}).model
    with pytest.raises(UsageError, match="model MobileNetV2 with arguments .*nowhere.h5.* cannot be built"):
        build_model(config, image_size=(32, 32), classes=3)
