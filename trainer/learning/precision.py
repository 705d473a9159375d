"""In which numbers a network computes. Weights, logits, losses and gradients are float32 in any case."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from shards.errors import UsageError
from trainer.learning.settings import Precision

_POLICIES: dict[Precision, str] = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


@contextmanager
def computing_in(precision: Precision) -> Iterator[None]:
    """Layers made inside compute in this precision; the process-wide setting is as before afterwards."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def check_precision(precision: Precision) -> None:
    """Refuses what this machine cannot do well. That float16 works on a GPU is untested here."""
    if precision == "float16" and not tf.config.list_physical_devices("GPU"):
        raise UsageError(
            "model.precision float16 needs a GPU, and TensorFlow finds none; use bfloat16 or float32 "
            "(weights are float32 in any case, so a run of float16 can be judged with --set model.precision=float32)"
        )
