"""Class weights: from the manifest's counts to the loss; scores stay what they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.learning.class_weights import find_class_weights
from trainer.learning.mixing import OTHER, SHARE, mixed_losses
from trainer.learning.state import build_state
from trainer.learning.task import MultiLabel, SingleLabel
from trainer.learning.update import Update
from trainer.reading.source import open_source

LABELS = [0] * 12 + [1] * 3 + [2] * 1


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pictures = [(data, label) for (data, _), label in zip(random_pictures(16), LABELS, strict=True)]
    splits = {"train": pictures, "other": pictures[:12] + pictures[15:]}
    return write_dataset(tmp_path_factory.mktemp("data"), splits, labels=("a", "b", "c", "never seen"))


def weights(dataset: Path, wanted: Any, **values: Any) -> Any:
    config = make_config(dataset, loss__class_weights=wanted, evaluate_every_epochs=None, **values)
    return find_class_weights(config, open_source(config))


def test_balanced_weights_make_all_classes_count_alike(dataset: Path) -> None:
    found = weights(dataset, "balanced")
    assert found == pytest.approx([16 / (3 * 12), 16 / (3 * 3), 16 / 3, 1])
    sums = np.array(found[:3]) * [12, 3, 1]
    assert sums == pytest.approx([16 / 3] * 3)  # and the mean weight of an example is 1
    assert weights(dataset, "balanced", splits__train="other")[:3] == pytest.approx([13 / 24, 1, 13 / 2])


def test_given_weights_are_1_for_the_others(dataset: Path) -> None:
    assert weights(dataset, {"c": 5, "a": 0.5}) == (0.5, 1, 5, 1)
    assert weights(dataset, "none") is None


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"never sen": 1}, "^loss.class_weights: there is no label 'never sen'; did you mean 'never seen'\\?$"),
        ({"zebra": 1}, "^loss.class_weights: there is no label 'zebra'; the dataset has a, b, c, never seen$"),
        ({"a": -1}, "loss.class_weights.a: Input should be greater than or equal to 0"),
        ("balance", "loss.class_weights: Input should be 'none' or 'balanced'"),
    ],
)
def test_mistakes_are_named(dataset: Path, wanted: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        weights(dataset, wanted)


def test_several_labels_weigh_having_one(tmp_path: Path) -> None:
    rows = [(row, labels) for (row, _), labels in zip(random_rows(8), [[0], [0, 1], [0], [0]] * 2, strict=True)]
    data = write_dataset(tmp_path, {"train": rows}, kind="multi")
    # All have the first label, so it needs no balance; nobody has the third.
    assert weights(data, "balanced") == pytest.approx([1, 3, 1])


def test_numbers_have_no_classes(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"train": random_rows(8, kind="regression")}, kind="regression")
    message = rf"^loss.class_weights needs labels, and {data} has examples with 2 target\(s\); set it to none$"
    with pytest.raises(UsageError, match=message):
        weights(data, "balanced")


def test_the_loss_of_a_class_is_weighed() -> None:
    task, outputs, targets = SingleLabel(("a", "b")), tf.constant([[1.0, 2.0]] * 3), tf.constant([0, 1, 1], tf.int64)
    plain = task.losses(outputs, targets, smoothing=0.1).numpy()
    weighed = task.losses(outputs, targets, smoothing=0.1, weights=(3.0, 0.5)).numpy()
    np.testing.assert_allclose(weighed, plain * [3, 0.5, 0.5], rtol=1e-6)


def test_having_a_label_is_weighed() -> None:
    task, outputs = MultiLabel(("a", "b")), tf.constant([[1.0, -2.0]] * 2)
    targets = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    each = tf.nn.sigmoid_cross_entropy_with_logits(targets, outputs).numpy()
    weighed = task.losses(outputs, targets, weights=(3.0, 4.0)).numpy()
    expected = [(3 * each[0, 0] + each[0, 1]) / 2, (each[1, 0] + 4 * each[1, 1]) / 2]
    np.testing.assert_allclose(weighed, expected, rtol=1e-6)
    np.testing.assert_allclose(task.losses(outputs, targets), each.mean(axis=1), rtol=1e-6)


def test_a_mixed_example_has_the_weights_of_both() -> None:
    task, outputs = SingleLabel(("a", "b")), tf.constant([[1.0, 2.0]])
    batch = {"label": tf.constant([0], tf.int64), OTHER: tf.constant([1], tf.int64), SHARE: tf.constant([0.25])}
    one, other = (float(task.losses(outputs, batch[name])[0]) for name in ("label", OTHER))
    found = mixed_losses(batch, "label", lambda targets: task.losses(outputs, targets, weights=(3.0, 0.5)))
    assert float(found[0]) == pytest.approx(0.25 * 3 * one + 0.75 * 0.5 * other)


def test_training_sums_the_weighed_loss_and_the_plain_score(dataset: Path) -> None:
    def counted(weights: tuple[float, ...] | None) -> list[float]:
        config: TrainConfig = make_config(dataset, model={"arguments": {"width": 2}}, evaluate_every_epochs=None)
        tf.keras.utils.set_random_seed(0)
        state = build_state(config, open_source(config), tf.distribute.get_strategy())
        batch = {
            "image": tf.constant(np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)), tf.uint8),
            "label": tf.constant([0, 0, 0, 0, 0, 2], tf.int64),
            "weight": tf.constant([1.0, 1, 1, 1, 1, 0]),
        }
        result: list[float] = Update(config, state, replicas=1, weights=weights)(batch).numpy().tolist()
        return result

    plain, weighed = counted(None), counted((3.0, 1.0, 100.0, 1.0))
    assert weighed[0] == pytest.approx(3 * plain[0], rel=1e-5)  # the last does not count, whatever its weight
    assert weighed[1:] == plain[1:]
    assert plain[2] == 5
