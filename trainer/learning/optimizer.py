"""Optimizers by name, with the learning rate of `rates`. They are given gradients that are summed over replicas."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.learning.rates import Rates
from trainer.learning.settings import OptimizerConfig, Precision

Tensor = Any
Optimizer = Any

_KINDS = {
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "lamb": keras.optimizers.Lamb,
    "lion": keras.optimizers.Lion,
    "sgd": keras.optimizers.SGD,
}


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of the update number `step`, counted from 0."""

    def __init__(self, rates: Rates) -> None:
        """Computes nothing yet."""
        self._rates = rates

    def __call__(self, step: Tensor) -> Tensor:
        """float32; computed in float64, which counts steps exactly."""
        done, rates = tf.cast(step, tf.float64), self._rates
        # The first step moves by a part of the peak, not by nothing; the last of the warm-up by all of it.
        warm = (done + 1.0) / max(rates.warmup, 1) * rates.peak
        return tf.cast(tf.where(done < rates.warmup, warm, self._after_warmup(done)), tf.float32)

    def _after_warmup(self, done: Tensor) -> Tensor:
        rates = self._rates
        progress = tf.clip_by_value((done - rates.warmup) / (rates.total - rates.warmup), 0.0, 1.0)
        if rates.schedule == "cosine":
            return rates.final + (rates.peak - rates.final) * (1.0 + tf.cos(np.pi * progress)) / 2.0
        if rates.schedule == "linear":
            return rates.peak + (rates.final - rates.peak) * progress
        drops = tf.reduce_sum(tf.cast(done >= tf.constant(rates.drops, tf.float64), tf.float64))
        return rates.peak * tf.constant(rates.factor, tf.float64) ** drops

    def get_config(self) -> dict[str, Any]:
        """The rates as plain values."""
        return asdict(self._rates)


def build_optimizer(
    config: OptimizerConfig, rate: LearningRate, *, variables: Sequence[Any], precision: Precision = "float32"
) -> Optimizer:
    """The optimizer that the config describes, for these variables; biases and normalisation do not decay."""
    own = {"momentum": config.momentum or 0.0, "nesterov": config.nesterov} if config.name == "sgd" else {}
    decay = config.weight_decay or (0.0 if config.name == "adamw" else None)  # AdamW wants a number
    optimizer = _KINDS[config.name](rate, weight_decay=decay, global_clipnorm=config.clip_norm, **own)
    optimizer.exclude_from_weight_decay(var_list=[each for each in variables if len(each.shape) < 2])
    # Keras would clip the gradients of each replica and then sum them. `update` sums them first, so that clipping and
    # the check of loss scaling see the same numbers on every replica, and the same on any number of them.
    optimizer._all_reduce_sum_gradients = list
    if precision == "float16":  # untested here: no GPU
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer
