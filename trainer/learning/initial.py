"""Weights to begin with: from another run, an export, or a file of Keras, as far as names and shapes fit."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.learning.saved import CHECKPOINTS, SAVED, VARIABLES, DamagedCheckpoint, newest, read_saved
from trainer.learning.state import State
from trainer.quiet import reason_of

Model = Any
Weights = dict[str, npt.NDArray[Any]]  # by name, such as conv1/kernel
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
TRAINED, AVERAGE = "model", "average"  # in a checkpoint of ours; an export has what is judged as its model
NAMED = 6  # weights, in a message


@dataclass(frozen=True)
class Taken:
    """What became of the weights of a network: `taken` from `path`, or `fresh`."""

    path: str
    taken: tuple[str, ...]
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        """Reads like `8 of 10 weights from out/run; fresh: head/kernel, head/bias`."""
        fresh = f"; fresh: {_some(self.fresh)}" if self.fresh else ""
        return f"{len(self.taken)} of {len(self.taken) + len(self.fresh)} weights from {self.path}{fresh}"


def begin(config: TrainConfig, state: State, strategy: Any) -> None:
    """Gives a run that starts the weights of `model.initial`, and says which."""
    if config.model.initial is None:
        return
    with strategy.scope():
        taken = take_initial(state.model, config.model.initial)
        if state.average:
            state.average.begin()
    print(f"initial  {taken}", flush=True)


def take_initial(model: Model, path: str) -> Taken:
    """Gives the network every weight of `path` that has the name and shape of one of its own."""
    stored = read_weights(path, model)
    own = {_name(weight.path): weight for weight in model.weights}
    fitting = [name for name, weight in own.items() if name in stored and stored[name].shape == tuple(weight.shape)]
    if not fitting:
        raise UsageError(
            f"model.initial: no weight of {path} fits this network by name and shape; "
            f"there: {_shapes(stored)}; here: {_shapes(own)}"
        )
    for name in fitting:
        own[name].assign(stored[name])
    taken = Taken(path, tuple(fitting), tuple(name for name in own if name not in fitting))
    _check_frozen(model, taken)
    return taken


def _check_frozen(model: Model, taken: Taken) -> None:
    trained = {_name(weight.path) for weight in model.trainable_weights}
    layers = [layer for layer in model._flatten_layers(include_self=False) if not layer.trainable]
    frozen = {_name(weight.path) for layer in layers for weight in layer.weights} - trained
    if random := [name for name in taken.fresh if name in frozen]:
        raise UsageError(
            f"model.freeze keeps {_some(random)} as they are, but {taken.path} has no such weights: "
            "they would stay random; freeze other layers"
        )


def read_weights(path: str, model: Model) -> Weights:
    """The weights at `path`; those in a .weights.h5 file have no names and are told by the layers of `model`."""
    if path.endswith(".weights.h5"):
        return _from_h5(path, model)
    return _from_keras(path) if path.endswith(".keras") else _from_checkpoint(_find_checkpoint(path))


def _find_checkpoint(path: str) -> str:
    """TensorFlow's own checkpoint that is, or is inside, what the path names."""
    place = Path(path)
    if (place / "saved_model.pb").is_file():
        return str(place / "variables" / "variables")
    if (place / SAVED).is_file():
        return _sound(place)
    if (place / CHECKPOINTS).is_dir() and (found := newest(place)):
        return str(found.path / VARIABLES)
    raise UsageError(
        f"model.initial: there are no weights at {path}; give the output of another run, one of its checkpoints "
        f"(OUTPUT/{CHECKPOINTS}/step-100), an export, or a .keras or .weights.h5 file"
    )


def _sound(checkpoint: Path) -> str:
    try:
        return str(read_saved(checkpoint).path / VARIABLES)
    except DamagedCheckpoint as damage:
        raise UsageError(f"model.initial: checkpoint {checkpoint} is damaged: {damage}; give another one") from damage


def _from_checkpoint(prefix: str) -> Weights:
    try:
        reader = tf.train.load_checkpoint(prefix)
        graph = TrackableObjectGraph.FromString(reader.get_tensor(OBJECT_GRAPH))
        roots = {child.local_name: child.node_id for child in graph.nodes[0].children}
        names = [_name(each.full_name) for each in _values(graph, roots[TRAINED])]
        keys = [each.checkpoint_key for each in _values(graph, roots.get(AVERAGE, roots[TRAINED]))]
        return {name: reader.get_tensor(key) for name, key in zip(names, keys, strict=True)}
    except (tf.errors.OpError, ValueError, KeyError) as error:
        raise UsageError(
            f"model.initial: {prefix} is not a checkpoint or export of this trainer: {reason_of(str(error))}"
        ) from error


def _values(graph: Any, root: int) -> list[Any]:
    """The variables below a node of a checkpoint's graph, in the same order for networks of the same make."""
    seen, left, found = {root}, [root], []
    while left:
        node = graph.nodes[left.pop()]
        found += node.attributes
        for child in sorted(node.children, key=lambda each: each.local_name):
            if child.node_id not in seen:
                seen.add(child.node_id)
                left.append(child.node_id)
    return found


def _from_keras(path: str) -> Weights:
    try:
        return {_name(each.path): each.numpy() for each in keras.models.load_model(path, compile=False).weights}
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"model.initial: {path} cannot be loaded: {reason_of(str(error))}; "
            "a network of classes that Keras does not know can be given as .weights.h5"
        ) from error


def _from_h5(path: str, model: Model) -> Weights:
    """What Keras puts into the network, which is left as it was; what it leaves out stays not a number."""
    before = model.get_weights()
    model.set_weights([np.full_like(values, np.nan) for values in before])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras tells of each layer that does not fit; so do we
            model.load_weights(path, skip_mismatch=True)
        loaded = {_name(each.path): each.numpy() for each in model.weights}
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"model.initial: {path} cannot be loaded: {reason_of(str(error))}") from error
    finally:
        model.set_weights(before)
    return {name: values for name, values in loaded.items() if not np.isnan(values).any()}


def _name(path: str) -> str:
    """A weight's name without that of its network, which counts the networks of a process."""
    return re.sub(r"^(sequential|functional|model)(_\d+)?/", "", path)


def _some(names: Any) -> str:
    return ", ".join(list(names)[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _shapes(weights: Mapping[str, Any]) -> str:
    return _some([f"{name} {'x'.join(map(str, each.shape))}" for name, each in sorted(weights.items())]) or "none"
