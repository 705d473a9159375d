"""Run by test_trainer_update: one update on one device and on two, which only a fresh process can have."""

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from trainer_data import make_config

from trainer.learning.optimizer import build_optimizer
from trainer.learning.settings import Precision
from trainer.learning.state import State, build_state
from trainer.learning.update import Update
from trainer.reading.dataset import Share, training_dataset
from trainer.reading.source import open_source

OPTIMIZER = {"name": "sgd", "learning_rate": 0.5, "clip_norm": 0.05, "ema": 0.9, "weight_decay": 0.01}


def updated(dataset: Path, strategy: Any, precision: Precision) -> list[Any]:
    """All weights, averages included, after one update; `precision` decides whether the loss is scaled."""
    config = make_config(dataset, global_batch=16, input__lanes=4, model__arguments={"width": 2}, optimizer=OPTIMIZER)
    source, replicas = open_source(config), strategy.num_replicas_in_sync
    share = Share(worker=0, workers=1, batch=16 // replicas, threads=1)
    keras.utils.set_random_seed(0)
    state = build_state(config, source, strategy)
    with strategy.scope():
        optimizer = build_optimizer(
            config.optimizer, state.learning_rate, variables=state.model.trainable_variables, precision=precision
        )
    update = Update(config, State(**vars(state) | {"optimizer": optimizer}), replicas=replicas)
    batches = strategy.distribute_datasets_from_function(
        lambda context: training_dataset(config, source, share, start_step=0)
    )
    tf.function(lambda batch: strategy.run(update, args=(batch,)))(next(iter(batches)))
    return [weight.numpy() for model in (state.model, state.judged) for weight in model.weights]


if __name__ == "__main__":
    data = Path(sys.argv[1])
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    one = updated(data, tf.distribute.OneDeviceStrategy("/cpu:0"), "float32")
    for precision in ("float32", "float16"):
        two = updated(data, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), precision)
        print(precision, max(np.abs(mine - theirs).max() for mine, theirs in zip(one, two, strict=True)))
