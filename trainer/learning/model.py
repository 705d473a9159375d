"""Networks by name. Every network maps normalised inputs to float32 logits and agrees across replicas."""

import difflib
import fnmatch
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from shards.errors import UsageError
from trainer.learning.precision import computing_in
from trainer.learning.settings import ModelConfig

Model = Any
HEAD = "head"
BODY = "body"  # in `freeze`: all but the last layer with weights


def build_model(config: ModelConfig, *, classes: int, **shape: Any) -> Model:
    """The network that the config names, with `classes` outputs.

    `shape` is what its inputs have: `image_size` (height, width) for pictures, `features` (how many) for rows, and
    `columns` (how many numbers) if it is given columns as a second input.
    """
    rows = "features" in shape
    name = config.name_for(rows=rows)
    builder = _find_builder(name, rows=rows)
    if "columns" in shape and not _takes(builder, "columns"):
        raise UsageError(f"model.columns: {name} takes none; give the function an argument `columns`, their number")
    try:
        with computing_in(config.precision):
            model = builder(**shape, classes=classes, dropout=config.dropout, **config.arguments)
    except (TypeError, ValueError, OSError) as error:
        raise UsageError(f"model {name} with arguments {config.arguments} cannot be built: {error}") from error
    if not isinstance(model, keras.Model) or tuple(model.output_shape) != (None, classes):
        raise UsageError(f"model {name} must be a keras.Model that gives [batch, {classes}] logits")
    _synchronize_batch_norm(model)
    _freeze(model, config.freeze)
    return model


def small_cnn(*, image_size: tuple[int, int], classes: int, dropout: float, columns: int = 0, width: int = 16) -> Model:
    """Three blocks of convolution, normalisation and pooling: enough for digits, quick on a CPU."""
    picture = values = keras.Input((*image_size, 3))
    for block in range(1, 4):
        size = width * 2 ** (block - 1)
        values = keras.layers.Conv2D(size, 3, padding="same", use_bias=False, name=f"conv{block}")(values)
        # Settles in tens of steps: small runs are evaluated early.
        values = keras.layers.BatchNormalization(momentum=0.9, name=f"norm{block}")(values)
        values = keras.layers.MaxPooling2D(padding="same")(keras.layers.ReLU()(values))
    return _with_head(picture, keras.layers.Flatten()(values), classes=classes, dropout=dropout, columns=columns)


def mlp(*, features: int, classes: int, dropout: float, columns: int = 0, hidden: Sequence[int] = (64, 64)) -> Model:
    """Fully connected layers of the sizes in `hidden`."""
    row = keras.Input((features,))
    inputs, values = _join(row, row, columns)
    for number, units in enumerate(hidden, start=1):
        values = keras.layers.Dense(units, activation="relu", name=f"dense{number}")(values)
        values = keras.layers.Dropout(dropout)(values)
    return keras.Model(inputs, _head(classes)(values))


def _with_head(picture: Any, values: Any, *, classes: int, dropout: float, columns: int) -> Model:
    """The network that ends in logits of `values`, and of the columns if there are any."""
    inputs, values = _join(picture, keras.layers.Dropout(dropout)(values), columns)
    return keras.Model(inputs, _head(classes)(values))


def _join(given: Any, values: Any, columns: int) -> tuple[Any, Any]:
    """The inputs of a network, and its values with those of the columns behind them."""
    if not columns:
        return given, values
    extra = keras.Input((columns,), name="columns")
    return [given, extra], keras.layers.Concatenate(dtype="float32")([values, extra])


def _head(classes: int) -> Any:
    return keras.layers.Dense(classes, dtype="float32", name=HEAD)  # whatever the others compute in


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

    def build(
        *, image_size: tuple[int, int], classes: int, dropout: float, columns: int = 0, **arguments: Any
    ) -> Model:
        if _takes(constructor, "include_preprocessing"):
            arguments = {"include_preprocessing": False} | arguments  # the dataset's own normalisation has been applied
        arguments = {"weights": None} | arguments  # a file of weights, or random ones
        body = constructor(include_top=False, input_shape=(*image_size, 3), pooling="avg", **arguments)
        return _with_head(body.input, body.output, classes=classes, dropout=dropout, columns=columns)

    return build


def _takes(function: Callable[..., Any], argument: str) -> bool:
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


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


def _freeze(model: Model, patterns: Sequence[str]) -> None:
    """Makes layers untrainable; frozen batch normalisation uses its moving statistics and leaves them as they are."""
    layers = [layer for layer in model._flatten_layers(include_self=False) if layer.weights]
    for pattern in patterns:
        # A layer that holds others, such as a nested network, hands the setting on to them.
        found = layers[:-1] if pattern == BODY else [x for x in layers if fnmatch.fnmatchcase(x.name, pattern)]
        if not found:
            names = ", ".join(layer.name for layer in layers)
            raise UsageError(f"model.freeze: {pattern!r} fits no layer with weights; there are {names}")
        for layer in found:
            layer.trainable = False
    if not model.trainable_variables:
        raise UsageError("model.freeze leaves nothing to train; name fewer layers")
