"""Every setting is strict, and every setting changes something that can be seen."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from pydantic import BaseModel
from trainer_data import make_config, random_pictures, write_dataset

from shards.errors import ShardsmithError, UsageError
from shards.order import global_batch
from shards.settings import load_settings
from trainer.config import TrainConfig
from trainer.judging.evaluate import Evaluator
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.class_weights import find_class_weights
from trainer.learning.initial import begin
from trainer.learning.mixing import Mixer
from trainer.learning.model import build_model
from trainer.learning.optimizer import LearningRate, build_optimizer
from trainer.learning.progress import Best, Progress, is_exhausted, judge_progress
from trainer.learning.rates import plan_rates
from trainer.learning.saved import find_checkpoint, list_checkpoints
from trainer.learning.schedule import make_schedule
from trainer.learning.state import build_state
from trainer.learning.update import Update
from trainer.reading.cache import cache_folder, check_cache, local_split
from trainer.reading.checks import check_replicas, check_training
from trainer.reading.dataset import Share, training_dataset
from trainer.reading.plan import global_batches
from trainer.reading.source import Source, find_geometry, open_source
from trainer.running.cluster import Cluster
from trainer.running.strategy import make_strategy, open_workplace

CONFIGS = Path(__file__).parents[1] / "configs"
STORED_8 = {"image": {"resize": {"mode": "exact", "size": 8, "width": None, "height": None}}}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = random_pictures(30)
    splits = {"train": [*pictures[:21], *pictures[:9:3]], "validation": pictures[24:], "other": pictures[::-1]}
    return write_dataset(tmp_path_factory.mktemp("data"), splits)


def order(config: TrainConfig) -> Any:
    return global_batch([40, 30], config.order, step=0).tolist()


def plan(config: TrainConfig) -> Any:
    return next(global_batches(config, open_source(config).split("train"), start_step=0)).tolist()


def geometry(config: TrainConfig) -> Any:
    return find_geometry(config, STORED_8)


def first_batch(config: TrainConfig) -> Any:
    share = Share(worker=0, workers=1, batch=config.global_batch, threads=1)
    batch = next(iter(training_dataset(config, open_source(config), share, start_step=0)))
    return batch["image"].numpy().tolist()


def mixed_batch(config: TrainConfig) -> Any:
    share = Share(worker=0, workers=1, batch=config.global_batch, threads=1)
    batch = next(iter(training_dataset(config, open_source(config), share, start_step=0)))
    return Mixer(config, given="image", target="label")(batch)["image"].numpy().tolist()


def schedule(config: TrainConfig) -> Any:
    return make_schedule(config, records=70)


def model(config: TrainConfig) -> Any:
    columns = {"columns": len(config.model.columns)} if config.model.columns else {}
    built = build_model(config.model, image_size=geometry(config).size, classes=3, **columns)
    return [layer.get_config() | {"name": ""} for layer in built.layers], [weight.shape for weight in built.weights]


def optimizer(config: TrainConfig) -> Any:
    rate = LearningRate(plan_rates(config, records=70))
    return build_optimizer(config.optimizer, rate, variables=[]).get_config() | rate.get_config()


def average(config: TrainConfig) -> Any:
    return build_state(config, open_source(config), tf.distribute.get_strategy()).average is None


def loss(config: TrainConfig) -> Any:
    state = build_state(config, open_source(config), tf.distribute.get_strategy())
    share = Share(worker=0, workers=1, batch=6, threads=1)
    batch = next(iter(training_dataset(config, open_source(config), share, start_step=0)))
    keras.utils.set_random_seed(1)
    return float(Update(config, state, replicas=1)(batch)[0])


def prefetched(config: TrainConfig) -> Any:
    share = Share(worker=0, workers=1, batch=6, threads=1)
    options = training_dataset(config, open_source(config), share, start_step=0)
    return int(options._input_dataset._buffer_size)


def kept(config: TrainConfig) -> Any:
    workplace = open_workplace(config, Cluster(), threads=None)
    state = build_state(config, open_source(config), workplace.strategy)
    checkpoints = Checkpoints(state, config, workplace)
    for _ in range(4):
        state.step.assign_add(1)
        checkpoints.save(Progress(best=Best("accuracy", 0.5, 1)))
    return [step for step, _ in list_checkpoints(Path(config.output))]


def judged(config: TrainConfig) -> Any:
    progress = Progress()
    for step, accuracy, loss in ((1, 0.5, 0.1), (2, 0.55, 0.3), (3, 0.4, 0.2)):
        progress = judge_progress(progress, {"accuracy": accuracy, "loss": loss}, step, config)
    return progress, is_exhausted(progress, config)


def evaluator(config: TrainConfig, worst: int = 0) -> Evaluator:
    source, workplace = open_source(config), open_workplace(config, Cluster(), threads=None)
    state = build_state(config, source, workplace.strategy)
    return Evaluator(config, source, workplace, state=state, split="validation", worst=worst)


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except ShardsmithError as error:
        return str(error)
    return ""


def training_refusal(config: TrainConfig) -> str:
    return refusal(lambda: check_training(config, open_source(config), workers=1))


def copies(config: TrainConfig) -> str:
    settings = config.input.model_dump()
    if config.input.cache == "disk":
        settings["cache_folder"] = f"{config.dataset}/cache"
    cached = make_config(config.dataset, input=settings)
    return type(local_split(cached, open_source(cached), "train").cache).__name__  # type: ignore[attr-defined]


def cache_refusal(config: TrainConfig) -> str:
    cached = make_config(config.dataset, input__cache="disk", input__cache_gb=config.input.cache_gb)
    return refusal(lambda: check_cache(cached, open_source(cached)))


def checkpoint_place(config: TrainConfig) -> str:
    return refusal(lambda: find_checkpoint(config, None))


def initial_place(config: TrainConfig) -> str:
    state = build_state(config, open_source(config), tf.distribute.get_strategy())
    return refusal(lambda: begin(config, state, tf.distribute.get_strategy()))


def strategy(config: TrainConfig) -> str:
    return type(make_strategy(config.strategy, Cluster())).__name__


def determinism(config: TrainConfig) -> bool:
    from tensorflow.python.framework import config as tf_config

    open_workplace(config, Cluster(), threads=None)
    enabled = tf_config.is_op_determinism_enabled()
    tf_config.disable_op_determinism()
    return bool(enabled)


EFFECTS: dict[str, tuple[Any, Any, Callable[[TrainConfig], Any]]] = {
    "dataset": ("nowhere", "elsewhere", lambda config: refusal(lambda: open_source(config))),
    "output": ("nowhere", "elsewhere", checkpoint_place),
    "seed": (0, 1, order),
    "epochs": (1, 2, lambda config: schedule(config.model_copy(update={"steps": None}))),
    "steps": (4, 5, schedule),
    "global_batch": (6, 8, order),
    "splits.train": ("train", "other", first_batch),
    "splits.evaluate": ("validation", "missing", training_refusal),
    "input.lanes": (2, 3, order),
    "input.run": (4, 5, order),
    "input.shuffle_records": (12, 24, order),
    "input.sampling": ("natural", "balanced", plan),
    "input.prefetch": (1, 2, prefetched),
    "input.cache": ("memory", "disk", copies),
    "input.cache_folder": ("one", "two", lambda config: str(cache_folder(config.input))),
    "input.cache_gb": (1e-9, 2e-9, cache_refusal),
    "model.name": ("small_cnn", "trainer.learning.model:small_cnn", lambda config: config.model.name),
    "model.image_size": (8, 16, model),
    "model.dropout": (0.1, 0.2, model),
    "model.arguments": ({"width": 2}, {"width": 3}, model),
    "model.columns": (["height"], ["height", "width"], model),
    "model.initial": ("nowhere", "elsewhere", initial_place),
    "model.freeze": ([], ["conv1"], model),
    "model.precision": ("float32", "bfloat16", model),
    "optimizer.name": ("adam", "sgd", optimizer),
    "optimizer.learning_rate": (0.1, 0.2, optimizer),
    "optimizer.base_batch": (3, 12, optimizer),
    "optimizer.schedule": ("constant", "cosine", optimizer),
    "optimizer.final_learning_rate": (0.0, 1e-4, optimizer),
    "optimizer.step_epochs": ([1], [2], optimizer),
    "optimizer.step_factor": (0.1, 0.2, optimizer),
    "optimizer.warmup_steps": (1, 2, optimizer),
    "optimizer.warmup_epochs": (0.1, 0.2, optimizer),
    "optimizer.momentum": (0.1, 0.9, optimizer),
    "optimizer.nesterov": (False, True, optimizer),
    "optimizer.weight_decay": (0.0, 0.1, optimizer),
    "optimizer.clip_norm": (None, 1.0, optimizer),
    "optimizer.accumulate": (1, 2, lambda config: refusal(lambda: check_replicas(config, 2))),
    "optimizer.ema": (None, 0.9, average),
    "loss.label_smoothing": (0.0, 0.1, loss),
    "loss.class_weights": ("balanced", {"a": 2.0}, lambda c: find_class_weights(c, open_source(c))),
    "augment.flip": (False, True, first_batch),
    "augment.flip_vertical": (False, True, first_batch),
    "augment.shift": (0, 2, first_batch),
    "augment.crop": (False, True, lambda c: find_geometry(c, {"image": {"resize": {"mode": "exact", "size": 9}}})),
    "augment.resized_crop": (None, {"area": [0.5, 1.0]}, first_batch),
    "augment.policy": ({"strength": 8}, {"strength": 9}, first_batch),
    "augment.colour.brightness": (0.0, 0.3, first_batch),
    "augment.colour.contrast": (0.0, 0.3, first_batch),
    "augment.colour.saturation": (0.0, 0.3, first_batch),
    "augment.colour.hue": (0.0, 0.3, first_batch),
    "augment.cutout": (0.0, 0.5, first_batch),
    "augment.mixup": (0.0, 0.5, mixed_batch),
    "augment.cutmix": (0.0, 0.5, mixed_batch),
    "checkpoint.every_steps": (2, 3, schedule),
    "checkpoint.keep": (1, 2, kept),
    "checkpoint.best": (False, True, kept),
    "checkpoint.metric": (None, "loss", judged),
    "early_stopping.metric": ("accuracy", "loss", judged),
    "early_stopping.patience": (1, 2, judged),
    "early_stopping.min_delta": (0.0, 0.1, judged),
    "faults.bad_loss": ("stop", "rollback", lambda config: config.faults.bad_loss),
    "faults.loss_limit": (None, 1.5, lambda config: config.faults.loss_limit),
    "faults.most_rollbacks": (1, 2, lambda config: config.faults.most_rollbacks),
    "faults.bad_record": ("stop", "skip", lambda config: config.faults.bad_record),
    "evaluation.batch": (4, 6, lambda config: evaluator(config)._steps),
    "evaluation.mistakes": (
        0,
        5,
        lambda config: len(evaluator(config, config.evaluation.mistakes).evaluate(0).mistakes),
    ),
    "log_every": (2, 3, schedule),
    "evaluate_every_epochs": (1, 2, schedule),
    "strategy": ("one_device", "mirrored", strategy),
    "deterministic": (False, True, determinism),
}


# What a setting needs beside itself.
NEEDS: dict[str, dict[str, Any]] = {
    "optimizer.final_learning_rate": {"optimizer__schedule": "cosine"},
    "optimizer.step_epochs": {"optimizer__schedule": "step"},
    "optimizer.step_factor": {"optimizer__schedule": "step", "optimizer__step_epochs": [1]},
    "optimizer.warmup_epochs": {"steps": 12},
    "optimizer.momentum": {"optimizer__name": "sgd"},
    "optimizer.nesterov": {"optimizer__name": "sgd", "optimizer__momentum": 0.9},
}


def fields(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_is_in_the_table() -> None:
    assert list(EFFECTS) == list(fields(TrainConfig))


@pytest.mark.parametrize("field", [name for name in EFFECTS if name != "epochs"])
def test_field_changes_the_result(field: str, dataset: Path, tmp_path: Path) -> None:
    one, other, observe = EFFECTS[field]
    values = {"model__arguments": {"width": 2}, "model__image_size": 8} | NEEDS.get(field, {})
    seen = []
    for number, value in enumerate((one, other)):
        places = {"dataset": dataset, "output": tmp_path / str(number)}
        seen.append(observe(make_config(**places | values | {field.replace(".", "__"): value})))
    assert seen[0] != seen[1]


def test_epochs_are_whole_global_batches_the_last_one_filled_up() -> None:
    assert make_config("", steps=None, epochs=3).total_steps(records=18) == 3 * 3
    assert make_config("", steps=None, epochs=3).total_steps(records=19) == 3 * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 2}, "set either epochs or steps"),
        ({"steps": None}, "set either epochs or steps"),
        ({"global_batch": "6"}, "global_batch: Input should be a valid integer"),
        ({"augment__shfit": 1}, "unknown key 'shfit' in augment; did you mean 'shift'?"),
        (
            {"early_stopping__patience": 2, "evaluate_every_epochs": None},
            "early_stopping.patience counts evaluations; set evaluate_every_epochs",
        ),
        ({"seed": 2**31}, "seed: Input should be less than 2147483648"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        make_config("", **values)


def test_lanes_must_share_the_batch() -> None:
    with pytest.raises(UsageError, match="global batch 6 is not divisible by 4 lanes"):
        _ = make_config("", input__lanes=4).order


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("train_*.yaml")))
def test_shipped_configs_are_valid(name: str) -> None:
    path = CONFIGS / f"{name}.yaml"
    config = load_settings(TrainConfig, path, {})
    assert config.order.lanes % 2 == 0, "a shipped config must run with 2 local workers"
    assert f"python -m trainer train configs/{name}.yaml" in path.read_text()


def test_resumed_runs_share_what_shapes_weights() -> None:
    shaping = make_config("").shaping()
    assert shaping["seed"] == 0
    assert shaping["input"].keys() == {"lanes", "run", "shuffle_records", "sampling"}
    assert not shaping.keys() & {"dataset", "output", "steps", "epochs", "strategy"}


@pytest.mark.parametrize(
    ("resize", "values", "expected"),
    [
        ({"mode": "exact", "width": 20, "height": 10}, {}, ("exact", (10, 20), (10, 20))),
        ({"mode": "center_crop", "size": 8}, {"model__image_size": 6}, ("center_crop", (6, 6), (6, 6))),
        (
            {"mode": "border", "size": 8},
            {"model__image_size": [6, 7], "augment__crop": True},
            ("border", (8, 8), (6, 7)),
        ),
        ({"mode": "keep_ratio", "size": 8}, {"model__image_size": 6}, ("center_crop", (6, 6), (6, 6))),
    ],
)
def test_geometry(resize: dict[str, Any], values: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = find_geometry(make_config("", **values), {"image": {"resize": resize}})
    assert (found.mode, found.box, found.size) == expected


@pytest.mark.parametrize(
    ("encode", "expected"), [({"format": "jpeg"}, True), ({"format": "original"}, False), ({}, False)]
)
def test_only_jpegs_are_known_from_the_build(encode: dict[str, str], expected: bool) -> None:
    assert find_geometry(make_config(""), {"image": STORED_8["image"] | {"encode": encode}}).only_jpegs is expected


@pytest.mark.parametrize(
    ("resize", "values", "message"),
    [
        ({"mode": "none"}, {}, "model.image_size is not set and the dataset's pictures"),
        ({"mode": "keep_ratio", "size": 8}, {}, "model.image_size is not set"),
        (
            {"mode": "none"},
            {"model__image_size": 8, "augment__crop": True},
            "augment.crop needs pictures stored in one size",
        ),
        ({"mode": "exact", "size": 8}, {"augment__crop": True}, "larger than model.image_size 8x8, these are 8x8"),
        ({"mode": "exact", "size": 8}, {"augment__shift": 9}, "augment.shift 9 is more than the picture's side"),
    ],
)
def test_geometry_refusals(resize: dict[str, Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_geometry(make_config("", **values), {"image": {"resize": resize}})


def test_digest_follows_content_and_labels(dataset: Path, tmp_path: Path) -> None:
    def digest(**values: Any) -> str:
        place = write_dataset(tmp_path / str(len(list(tmp_path.iterdir()))), {"train": random_pictures(8)}, **values)
        source: Source = open_source(make_config(place))
        return source.digest("train")

    assert digest() == digest()
    assert digest() != digest(labels=("b", "a", "c"))


def test_model_names() -> None:
    named = make_config("", model__name="MobileNetV3Small", model__image_size=32).model
    built = build_model(named, image_size=(32, 32), classes=3)
    assert not any("rescaling" in layer.name for layer in built.layers), "pixels are normalised already"
    assert np.shape(built(np.zeros([1, 32, 32, 3]))) == (1, 3)


def test_a_model_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import keras

        def build(*, image_size, classes, dropout, units):
            return keras.Sequential([
                keras.Input((*image_size, 3)),
                keras.layers.Flatten(),
                keras.layers.Dense(units, name="mine"),
                keras.layers.Dropout(dropout),
                keras.layers.Dense(classes),
            ])
    """
    (tmp_path / "my_models.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    config = make_config("", model__name="my_models:build", model__dropout=0.25, model__arguments={"units": 7}).model
    built = build_model(config, image_size=(8, 6), classes=3)
    assert np.shape(built(np.zeros([2, 8, 6, 3]))) == (2, 3)
    assert built.get_layer("mine").units == 7
    assert [layer.rate for layer in built.layers if hasattr(layer, "rate")] == [0.25]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MobilNetV2", "'MobilNetV2' is not known; did you mean 'MobileNetV2'?"),
        (
            "trainer.learning.model:nothing",
            "cannot be imported: module 'trainer.learning.model' has no attribute 'nothing'",
        ),
        ("no_such_module:build", "cannot be imported: No module named 'no_such_module'"),
        ("builtins:dict", r"must be a keras.Model that gives \[batch, 3\] logits"),
    ],
)
def test_unknown_models(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        build_model(make_config("", model__name=name).model, image_size=(8, 8), classes=3)
