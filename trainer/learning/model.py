"""Networks and optimizers by name. Every network maps normalised inputs to logits and agrees across replicas."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from shards.errors import UsageError
from trainer.learning.settings import ModelConfig, OptimizerConfig

Model = Any
Optimizer = Any


def build_model(config: ModelConfig, *, classes: int, **shape: Any) -> Model:
    """The network that the config names, with `classes` outputs.

    `shape` is what its inputs have: `image_size` (height, width) for pictures, `features` (how many) for rows.
    """
    rows = "features" in shape
    name = config.name_for(rows=rows)
    builder = _find_builder(name, rows=rows)
    try:
        model = builder(**shape, classes=classes, dropout=config.dropout, **config.arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"model {name} with arguments {config.arguments} cannot be built: {error}") from error
    if not isinstance(model, keras.Model) or tuple(model.output_shape) != (None, classes):
        raise UsageError(f"model {name} must be a keras.Model that gives [batch, {classes}] logits")
    _synchronize_batch_norm(model)
    return model


def build_optimizer(config: OptimizerConfig, *, total_steps: int) -> Optimizer:
    """The optimizer that the config describes; biases and normalisation parameters do not decay."""
    rate = config.learning_rate
    schedule = keras.optimizers.schedules.CosineDecay(rate, total_steps) if config.schedule == "cosine" else rate
    if config.name == "sgd":
        optimizer = keras.optimizers.SGD(
            schedule, momentum=config.momentum or 0.0, weight_decay=config.weight_decay or None
        )
    elif config.name == "adamw":
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=config.weight_decay)
    else:
        optimizer = keras.optimizers.Adam(schedule, weight_decay=config.weight_decay or None)
    if config.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def small_cnn(*, image_size: tuple[int, int], classes: int, dropout: float, width: int = 16) -> Model:
    """Three blocks of convolution, normalisation and pooling: enough for digits, quick on a CPU."""
    layers = [keras.Input((*image_size, 3))]
    for block in range(3):
        layers += [
            keras.layers.Conv2D(width * 2**block, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),  # settles in tens of steps: small runs are evaluated early
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(padding="same"),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dropout(dropout), keras.layers.Dense(classes)]
    return keras.Sequential(layers)


def mlp(*, features: int, classes: int, dropout: float, hidden: Sequence[int] = (64, 64)) -> Model:
    """Fully connected layers of the sizes in `hidden`."""
    layers = [keras.Input((features,))]
    for units in hidden:
        layers += [keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(dropout)]
    return keras.Sequential([*layers, keras.layers.Dense(classes)])


def _find_builder(name: str, *, rows: bool) -> Callable[..., Model]:
    if ":" in name:
        return _from_module(name)
    if name == "mlp" and not rows:
        raise UsageError("model.name: 'mlp' takes rows of numbers, the dataset has pictures; use small_cnn")
    if name == "mlp":
        return mlp
    builder = small_cnn if name == "small_cnn" else _from_applications(name)
    if rows:
        raise UsageError(
            f"model.name: {name!r} takes pictures, the dataset has rows of numbers; use mlp or module:function"
        )
    return builder


def _from_applications(name: str) -> Callable[..., Model]:
    known = [n for n, value in vars(keras.applications).items() if n[0].isupper() and callable(value)]
    if name not in known:
        near = difflib.get_close_matches(name, [*known, "small_cnn", "mlp"], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "use small_cnn, MobileNetV2, ResNet50 or module:function"
        raise UsageError(f"model.name: {name!r} is not known; {hint}")
    constructor = getattr(keras.applications, name)

    def build(*, image_size: tuple[int, int], classes: int, dropout: float, **arguments: Any) -> Model:
        if "include_preprocessing" in inspect.signature(constructor).parameters:
            arguments = {"include_preprocessing": False} | arguments  # the dataset's own normalisation has been applied
        body = constructor(include_top=False, weights=None, input_shape=(*image_size, 3), pooling="avg", **arguments)
        logits = keras.layers.Dense(classes)(keras.layers.Dropout(dropout)(body.output))
        return keras.Model(body.input, logits)

    return build


def _from_module(name: str) -> Callable[..., Model]:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"model.name: {name!r} cannot be imported: {error}") from error


def _synchronize_batch_norm(model: Model) -> None:
    # Keras 3 leaves moving statistics to each replica; without this the workers' models drift apart.
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
