"""Updates of the weights: slices, clipping, averages and precision change what they say, and nothing else."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from tensorflow.python.framework import config as tf_config
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.learning.loop import Outcome, train
from trainer.learning.optimizer import build_optimizer
from trainer.learning.state import State, build_state, restore
from trainer.learning.update import Update
from trainer.reading.checks import check_replicas, check_training
from trainer.reading.dataset import Share, training_dataset
from trainer.reading.source import open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import open_workplace
from trainer.serving.export import export

KINDS = ("single", "multi", "regression")
SGD = {"name": "sgd", "learning_rate": 0.5}


@pytest.fixture(scope="module", params=KINDS)
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_rows(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_rows(tmp_path_factory.mktemp("single"), "single")


def _write_rows(directory: Path, kind: str) -> Path:
    examples = random_rows(64, kind=kind)
    return write_dataset(directory, {"train": examples[:48], "validation": examples[48:]}, kind=kind)


@pytest.fixture(autouse=True)
def _restore_determinism() -> Iterator[None]:
    yield
    tf_config.disable_op_determinism()


def configure(dataset: Path, output: Path | str = "nowhere", **values: Any) -> TrainConfig:
    base = {"global_batch": 8, "model": {"arguments": {"hidden": [5]}}, "optimizer": SGD, "input": {"lanes": 4}}
    return make_config(dataset, output, **base | {"evaluate_every_epochs": None} | values)


def run(config: TrainConfig) -> Outcome:
    return train(config, open_source(config), open_workplace(config, Cluster(), threads=None))


def begin(config: TrainConfig) -> State:
    keras.utils.set_random_seed(config.seed)
    return build_state(config, open_source(config), tf.distribute.get_strategy())


def batch(config: TrainConfig) -> dict[str, Any]:
    share = Share(worker=0, workers=1, batch=config.global_batch, threads=1)
    return next(iter(training_dataset(config, open_source(config), share, start_step=0)))


def update_once(config: TrainConfig) -> tuple[State, list[float]]:
    state = begin(config)
    counted = tf.function(Update(config, state, replicas=1))(batch(config))
    return state, counted.numpy().tolist()


@pytest.mark.parametrize("slices", [2, 8])
def test_slices_are_the_whole_batch(rows: Path, slices: int) -> None:
    whole, counted = update_once(configure(rows))
    sliced, added = update_once(configure(rows, optimizer=SGD | {"accumulate": slices}))
    untouched = begin(configure(rows))
    assert added == pytest.approx(counted, rel=1e-5)
    assert counted[2] == 8
    for before, one, other in zip(
        untouched.model.get_weights(), whole.model.get_weights(), sliced.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert np.abs(one - before).max() > 1e-3


def test_slices_add_what_layers_ask_for_once(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty on the weights counts once per step, however many slices there are."""
    monkeypatch.setattr(sys.modules["trainer.learning.model"], "mlp", _penalised)
    values = {"model": {"dropout": 0.0}}
    whole, _ = update_once(configure(single, **values))
    sliced, _ = update_once(configure(single, optimizer=SGD | {"accumulate": 4}, **values))
    for one, other in zip(whole.model.get_weights(), sliced.model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _penalised(*, features: int, classes: int, dropout: float) -> keras.Model:
    dense = keras.layers.Dense(classes, kernel_regularizer=keras.regularizers.L2(0.5))
    return keras.Sequential([keras.Input((features,)), dense])


def test_slices_with_batch_normalisation_learn(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", {"train": random_pictures(24), "validation": random_pictures(12)})
    values = {"model": {"arguments": {"width": 4}}, "optimizer": {"learning_rate": 0.02, "accumulate": 2}}
    outcome = run(configure(data, tmp_path / "run", steps=None, epochs=10, evaluate_every_epochs=10, **values))
    assert outcome.evaluation is not None
    assert outcome.evaluation.metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("slices", "replicas", "message"),
    [
        (8, 2, "optimizer.accumulate 8 does not divide the 4 examples of each of 2 replicas; choose another"),
        (1, 3, "global_batch 8 cannot be shared by 3 replicas"),
    ],
)
def test_slices_that_do_not_divide(slices: int, replicas: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_replicas(configure(Path("x"), optimizer={"accumulate": slices}), replicas)


def test_an_average_follows_the_weights(single: Path) -> None:
    config = configure(single, optimizer=SGD | {"ema": 0.9})
    state = begin(config)
    assert state.average is not None
    start = [weight.copy() for weight in state.model.get_weights()]
    for one, other in zip(state.average.model.get_weights(), start, strict=True):
        np.testing.assert_array_equal(one, other)
    update, given, expected = tf.function(Update(config, state, replicas=1)), batch(config), start
    for number in range(1, 4):
        update(given)
        decay = min(0.9, (1 + number) / (10 + number))
        expected = [
            decay * old + (1 - decay) * new for old, new in zip(expected, state.model.get_weights(), strict=True)
        ]
    for one, other in zip(state.average.model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.abs(state.model.get_weights()[0] - expected[0]).max() > 1e-3


def test_averages_are_judged_and_exported(tmp_path: Path) -> None:
    """Moving statistics of batch normalisation are averaged with the weights."""
    pictures = random_pictures(30)
    data = write_dataset(tmp_path / "data", {"train": pictures[:24], "validation": pictures[24:]})
    values = {"model": {"arguments": {"width": 2}}, "optimizer": {"learning_rate": 0.05, "ema": 0.999}}
    config = configure(data, tmp_path / "run", steps=6, **values)
    outcome = run(config)
    workplace = open_workplace(config, Cluster(), threads=None)
    state = build_state(config, open_source(config), workplace.strategy)
    restore(state, outcome.checkpoint)
    assert state.average is not None
    assert state.judged is state.average.model
    for one, other in zip(state.model.weights, state.average.model.weights, strict=True):
        assert np.abs(one.numpy() - other.numpy()).max() > 0, one.path
    evaluator = Evaluator(config, open_source(config), workplace, state=state, split="validation")
    with_averages = evaluator.evaluate(6).loss
    state.average.begin()  # copies the last weights
    assert evaluator.evaluate(6).loss != with_averages
    restore(state, outcome.checkpoint)
    served = tf.saved_model.load(str(export(config, open_source(config), checkpoint=None).directory))
    outputs = state.judged(state.transform(served.preprocess([pictures[0][0]])), training=False)
    answered = served.signatures["serving_default"](image_bytes=tf.constant([pictures[0][0]]))
    np.testing.assert_allclose(answered["probabilities"], tf.nn.softmax(outputs), rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_resumes_bit_by_bit_with_everything_on(single: Path, tmp_path: Path, precision: str) -> None:
    chosen = {"name": "adamw", "learning_rate": 0.02, "weight_decay": 0.01, "warmup_steps": 2, "schedule": "step"}
    chosen |= {"step_epochs": [1], "ema": 0.9, "clip_norm": 0.5, "accumulate": 2}
    values: dict[str, Any] = {
        "deterministic": True,
        "optimizer": chosen,
        "loss": {"label_smoothing": 0.1},
        "model": {"arguments": {"hidden": [5]}, "dropout": 0.3, "precision": precision},
    }
    whole = run(configure(single, tmp_path / "whole", steps=9, **values))
    first = run(configure(single, tmp_path / "parts", steps=4, **values))
    rest = run(configure(single, tmp_path / "parts", steps=9, **values))
    assert (rest.first_step, rest.last_step) == (4, 9)
    assert rest.weights == whole.weights != first.weights


def test_bfloat16_learns_with_float32_weights(rows: Path, tmp_path: Path) -> None:
    values = {"model": {"arguments": {"hidden": [16]}, "precision": "bfloat16"}, "optimizer": {"learning_rate": 0.02}}
    config = configure(rows, tmp_path, steps=None, epochs=40, evaluate_every_epochs=40, **values)
    outcome = run(config)
    state = build_state(config, open_source(config), tf.distribute.get_strategy())
    assert outcome.evaluation is not None
    metrics = outcome.evaluation.metrics
    if "mae" in metrics:
        assert metrics["mae"] < 0.5, "guessing the mean errs by about 1"
    else:
        assert metrics.get("accuracy", metrics.get("f1", 0)) > 0.75, "guessing gives about 0.5"
    assert {weight.dtype for weight in state.model.weights} == {"float32"}
    assert [layer.compute_dtype for layer in state.model.layers if layer.weights] == ["bfloat16", "float32"]
    assert state.outputs(batch(config), training=False).dtype == tf.float32
    assert keras.config.dtype_policy().name == "float32", "the setting is that of one model"


def test_float16_needs_a_gpu(single: Path) -> None:
    config = configure(single, model={"precision": "float16"})
    with pytest.raises(UsageError, match="float16 needs a GPU, and TensorFlow finds none; use bfloat16 or float32"):
        open_workplace(config, Cluster(), threads=None)


def test_loss_scaling_gives_the_same_update_and_skips_what_overflows(single: Path) -> None:
    """The part of float16 that a CPU can run: scaled losses, unscaled and clipped gradients."""
    plain, _ = update_once(configure(single, optimizer=SGD | {"clip_norm": 0.1}))
    config = configure(single, optimizer=SGD | {"clip_norm": 0.1})
    state = begin(config)
    scaled = build_optimizer(
        config.optimizer, state.learning_rate, variables=state.model.trainable_variables, precision="float16"
    )
    state = State(**vars(state) | {"optimizer": scaled})
    update = tf.function(Update(config, state, replicas=1))
    update(batch(config))
    for one, other in zip(plain.model.get_weights(), state.model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    before, scale = state.model.get_weights(), float(scaled.dynamic_scale.numpy())
    scaled.dynamic_scale.assign(np.inf)
    update(batch(config))
    for one, other in zip(before, state.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (scale, int(scaled.iterations.numpy())) == (2.0**15, 1)


def test_smoothing_numbers_is_refused(tmp_path: Path) -> None:
    config = configure(_write_rows(tmp_path, "regression"), loss={"label_smoothing": 0.1})
    with pytest.raises(UsageError, match="loss.label_smoothing is for classes, and .* has numbers to predict; remove"):
        check_training(config, open_source(config), workers=1)


@pytest.mark.slow
def test_two_workers_clip_what_one_would(single: Path, tmp_path: Path) -> None:
    """The norm is that of the global batch: the first update, averages included, is the same on one and two workers."""
    chosen = SGD | {"learning_rate": 1.0, "clip_norm": 0.01, "accumulate": 2, "ema": 0.9}
    values = {"steps": 1, "optimizer": chosen, "loss": {"label_smoothing": 0.1}}
    one, two = (configure(single, tmp_path / name, **values) for name in ("one", "two"))
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(two.model_dump(mode="json")))
    command = [sys.executable, "-m", "trainer", "train", str(path), "--local-workers", "2"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    assert _digest(text) == _digest((tmp_path / "two/logs/worker-1.log").read_text())
    alone, together = begin(one), begin(two)
    start = alone.model.get_weights()
    restore(alone, run(one).checkpoint)
    restore(together, str(tmp_path / "two/checkpoints/step-1"))
    assert alone.average is not None
    assert together.average is not None
    for mine, theirs in ((alone.model, together.model), (alone.average.model, together.average.model)):
        for a, b in zip(mine.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    moved = [after - before for after, before in zip(together.model.get_weights(), start, strict=True)]
    assert np.sqrt(sum((each**2).sum() for each in moved)) == pytest.approx(0.01, rel=1e-4), "clipping was active"


@pytest.mark.slow
def test_two_devices_update_as_one(tmp_path: Path) -> None:
    """MirroredStrategy with batch normalisation, clipping, averages, and scaled losses as float16 needs them."""
    data = write_dataset(tmp_path, {"train": random_pictures(32)})
    command = [sys.executable, str(Path(__file__).with_name("two_replicas.py")), str(data)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    differences = dict(line.split() for line in text.splitlines())
    assert list(differences) == ["float32", "float16"]
    assert max(map(float, differences.values())) < 1e-6


def _digest(text: str) -> str:
    found = re.search(r"weights +sha256 ([0-9a-f]{64})", text)
    assert found, text
    return found[1]
