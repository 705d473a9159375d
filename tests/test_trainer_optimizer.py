"""The learning rate of every step by formulas, and optimizers that do what their settings say."""

import math
from typing import Any

import keras
import numpy as np
import pytest
from trainer_data import make_config

from shards.errors import UsageError
from trainer.learning.optimizer import LearningRate, build_optimizer
from trainer.learning.rates import plan_rates

RECORDS = 60  # ten steps of six in an epoch


def rate(**values: Any) -> LearningRate:
    return LearningRate(plan_rates(make_config("", **{"steps": 40} | values), records=RECORDS))


def rates(steps: range, **values: Any) -> list[float]:
    schedule = rate(**values)
    return [float(schedule(step)) for step in steps]


def test_a_constant_rate_is_constant() -> None:
    assert rates(range(0, 60, 10), optimizer__learning_rate=0.5) == [0.5] * 6


def test_cosine_falls_to_the_final_rate_and_stays_there() -> None:
    chosen = {"learning_rate": 0.5, "schedule": "cosine", "final_learning_rate": 0.1}
    expected = [0.1 + 0.4 * (1 + math.cos(math.pi * min(step / 40, 1))) / 2 for step in range(50)]
    np.testing.assert_allclose(rates(range(50), optimizer=chosen), expected, rtol=1e-6)
    assert expected[0] == 0.5
    assert expected[40:] == [0.1] * 10


def test_linear_falls_in_a_straight_line_after_the_warmup() -> None:
    chosen = {"learning_rate": 0.5, "schedule": "linear", "warmup_steps": 8}
    warm = [0.5 * (step + 1) / 8 for step in range(8)]
    fall = [0.5 * (1 - (step - 8) / 32) for step in range(8, 41)]
    np.testing.assert_allclose(rates(range(41), optimizer=chosen), warm + fall, rtol=1e-6)
    assert warm[-1] == fall[0] == 0.5


def test_cosine_after_a_warmup_in_epochs() -> None:
    chosen = {"learning_rate": 0.2, "schedule": "cosine", "warmup_epochs": 0.5}
    warm = [0.2 * (step + 1) / 5 for step in range(5)]
    fall = [0.1 * (1 + math.cos(math.pi * (step - 5) / 35)) for step in range(5, 40)]
    np.testing.assert_allclose(rates(range(40), optimizer=chosen), warm + fall, rtol=1e-6)


def test_steps_fall_at_their_epochs() -> None:
    chosen = {"learning_rate": 8.0, "schedule": "step", "step_epochs": [1, 2.5], "step_factor": 0.5, "warmup_steps": 2}
    expected = [4.0, *[8.0] * 9, *[4.0] * 15, *[2.0] * 15]
    assert rates(range(40), optimizer=chosen) == expected


def test_rates_grow_with_the_global_batch() -> None:
    chosen = {"learning_rate": 0.1, "base_batch": 4, "schedule": "linear", "final_learning_rate": 0.02}
    config = make_config("", steps=40, global_batch=6, optimizer=chosen)
    planned = plan_rates(config, records=RECORDS)
    assert (planned.peak, planned.final) == (pytest.approx(0.15), pytest.approx(0.03))
    assert str(planned) == "0.15, then linear to 0.03"


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"learning_rate": 0.1}, "0.1"),
        ({"warmup_steps": 3, "schedule": "cosine"}, "0.001 after 3 steps of warm-up, then cosine to 0"),
        ({"schedule": "step", "step_epochs": [1, 2]}, "0.001, times 0.1 at steps 10, 20"),
    ],
)
def test_rates_in_words(chosen: dict[str, Any], text: str) -> None:
    assert str(plan_rates(make_config("", steps=40, optimizer=chosen), records=RECORDS)) == text


def test_a_rate_counts_steps_beyond_float32() -> None:
    """float32 holds whole numbers to 2**24; a schedule must not stand still after that."""
    schedule = rate(steps=2**26, optimizer={"schedule": "linear", "learning_rate": 1.0})
    assert float(schedule(2**25 + 1)) < float(schedule(2**25 - 3))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"momentum": 0.9}, "momentum is a setting of sgd, not of adam; remove it or choose sgd"),
        ({"name": "sgd", "nesterov": True}, "nesterov is a kind of momentum; set momentum, for example 0.9"),
        ({"final_learning_rate": 1e-4}, "final_learning_rate is for cosine and linear, not for constant"),
        ({"schedule": "cosine", "final_learning_rate": 1.0}, "final_learning_rate is higher than learning_rate"),
        ({"schedule": "step"}, "step_epochs and the schedule `step` belong together"),
        ({"step_epochs": [1]}, "step_epochs and the schedule `step` belong together"),
        ({"schedule": "step", "step_epochs": [2, 1]}, "step_epochs must rise"),
        ({"warmup_steps": 1, "warmup_epochs": 1.0}, "set either warmup_steps or warmup_epochs"),
        ({"accumulate": 4}, "optimizer.accumulate 4 does not divide global_batch 6"),
        ({"ema": 1.0}, "optimizer.ema: Input should be less than 1"),
        ({"clip_norm": 0.0}, "optimizer.clip_norm: Input should be greater than 0"),
        ({"name": "sdg"}, "optimizer.name: Input should be 'adam', 'adamw', 'lamb', 'lion' or 'sgd'"),
    ],
)
def test_settings_that_do_not_fit(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_config("", optimizer=chosen)
    assert message in str(raised.value)


def test_a_warmup_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(UsageError, match="a warm-up of 40 steps leaves nothing of a run of 40; set optimizer.warmup"):
        rate(optimizer__warmup_epochs=4.0)


def moved(gradient: list[float], *, updates: int = 1, **chosen: Any) -> list[float]:
    """Where [[1, 1]] has gone after some updates with the same gradient."""
    variable = keras.Variable([[1.0, 1.0]], name="kernel")
    config = make_config("", steps=40, optimizer=chosen)
    optimizer = build_optimizer(
        config.optimizer, LearningRate(plan_rates(config, records=RECORDS)), variables=[variable]
    )
    for _ in range(updates):
        optimizer.apply_gradients([(keras.ops.convert_to_tensor([gradient]), variable)])
    return [float(value) for value in variable.numpy()[0]]


@pytest.mark.parametrize(
    ("chosen", "updates", "expected"),
    [
        ({"name": "sgd", "learning_rate": 0.1}, 2, [1 - 0.2 * 3, 1 - 0.2 * 4]),
        # Velocity 0.3 and 0.3 + 0.9 * 0.3; then with nesterov's look ahead.
        ({"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}, 2, [1 - 0.3 * 2.9, 1 - 0.4 * 2.9]),
        ({"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "nesterov": True}, 1, [1 - 0.3 * 1.9, 1 - 0.4 * 1.9]),
        # The norm of [3, 4] is 5: clipped to 1 it is [0.6, 0.8].
        ({"name": "sgd", "learning_rate": 0.1, "clip_norm": 1.0}, 1, [1 - 0.06, 1 - 0.08]),
        ({"name": "sgd", "learning_rate": 0.1, "clip_norm": 9.0}, 1, [1 - 0.3, 1 - 0.4]),
        ({"name": "sgd", "learning_rate": 0.1, "warmup_steps": 4}, 2, [1 - 0.075 * 3, 1 - 0.075 * 4]),
        # The first step of Adam and Lion has the size of the rate, whatever the gradient.
        ({"name": "adam", "learning_rate": 0.1}, 1, [0.9, 0.9]),
        ({"name": "lion", "learning_rate": 0.1}, 1, [0.9, 0.9]),
        ({"name": "adamw", "learning_rate": 0.1, "weight_decay": 0.5}, 1, [1 - 0.05 - 0.1, 1 - 0.05 - 0.1]),
        ({"name": "adamw", "learning_rate": 0.1}, 1, [0.9, 0.9]),
        # LAMB scales Adam's step [1, 1] to the norm of the weights.
        ({"name": "lamb", "learning_rate": 0.1}, 1, [0.9, 0.9]),
    ],
)
def test_updates_by_hand(chosen: dict[str, Any], updates: int, expected: list[float]) -> None:
    assert moved([3.0, 4.0], updates=updates, **chosen) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw", "lamb", "lion", "sgd"])
def test_biases_and_normalisation_do_not_decay(name: str) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.LayerNormalization()])
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    config = make_config("", optimizer={"name": name, "learning_rate": 0.1, "weight_decay": 0.5})
    rate = LearningRate(plan_rates(config, records=RECORDS))
    optimizer = build_optimizer(config.optimizer, rate, variables=model.trainable_variables)
    zeros = [keras.ops.zeros(each.shape) for each in model.trainable_variables]
    optimizer.apply_gradients(zip(zeros, model.trainable_variables, strict=True))
    kernel, *others = model.get_weights()
    np.testing.assert_allclose(kernel, 0.95, rtol=1e-6)
    assert [each.tolist() for each in others] == [[1.0, 1.0]] * 3, "bias, gamma and beta"
