"""Mixup and cutmix: who is mixed with whom, in which shares, and that the number of workers does not matter."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from trainer_data import make_config, random_pictures, random_rows, write_dataset

from shards.errors import UsageError
from trainer.config import TrainConfig
from trainer.learning.mixing import BLEND, BOX, OTHER, PARTNER, SHARE, Mixer, draw_mix, mixed_losses
from trainer.learning.task import make_task
from trainer.reading.checks import check_replicas, check_training
from trainer.reading.dataset import Share, training_dataset
from trainer.reading.seeds import record_seed
from trainer.reading.source import Geometry, Rows, open_source

PICTURE = Geometry(mode="exact", box=(10, 20), size=(10, 20))
KINDS: dict[str, dict[str, float]] = {
    "mixup": {"mixup": 0.4},
    "cutmix": {"cutmix": 1.0},
    "both": {"mixup": 0.4, "cutmix": 1.0},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), {"train": random_pictures(39)})


def configure(dataset: Path | str = "", **augment: float) -> TrainConfig:
    values = {"lanes": 4, "run": 3, "shuffle_records": 24}
    return make_config(dataset, global_batch=12, input=values, augment=augment, evaluate_every_epochs=None)


def mixer(config: TrainConfig, given: str = "image", target: str = "label") -> Mixer:
    return Mixer(config, given=given, target=target)


def draws(config: TrainConfig, count: int, *, form: Geometry | Rows = PICTURE, epoch: int = 0) -> dict[str, Any]:
    """What is drawn for the first records, from one graph."""
    rows = tf.data.Dataset.range(count).map(
        lambda n: draw_mix(config, seed=record_seed(5, epoch=epoch, ordinal=n), form=form)
    )
    found = list(rows.as_numpy_iterator())
    return {name: np.stack([row[name] for row in found]) for name in found[0]}


def test_nothing_is_drawn_without_mixing() -> None:
    assert draw_mix(configure(), seed=record_seed(5, epoch=0, ordinal=0), form=PICTURE) == {}
    batch = {"image": tf.zeros([2, 3, 3, 3]), "label": tf.constant([0, 1])}
    assert mixer(configure())(batch) is batch
    assert mixed_losses(batch, "label", lambda targets: targets * 2).numpy().tolist() == [0, 2]


def test_partners_are_everyone_else_in_the_lane() -> None:
    ahead = draws(configure(mixup=1.0), 400)[PARTNER]  # three of a lane are in a batch
    assert sorted(set(ahead.tolist())) == [1, 2]
    assert 150 < (ahead == 1).sum() < 250


@pytest.mark.parametrize(("alpha", "deviation"), [(1.0, 1 / np.sqrt(12)), (0.2, np.sqrt(1 / 5.6)), (8.0, 0.121)])
def test_shares_follow_beta(alpha: float, deviation: float) -> None:
    blend = draws(configure(mixup=alpha), 1500)[BLEND]
    assert ((blend >= 0) & (blend <= 1)).all()
    assert blend.mean() == pytest.approx(0.5, abs=0.05)
    assert blend.std() == pytest.approx(deviation, rel=0.1)  # of Beta(a, a): 1 / sqrt(4 * (2 a + 1))


def test_a_tiny_alpha_is_nearly_all_or_nothing_and_never_undefined() -> None:
    blend = draws(configure(mixup=0.001), 300)[BLEND]
    assert not np.isnan(blend).any()
    assert (np.minimum(blend, 1 - blend) < 0.001).mean() > 0.9


def test_boxes_lie_inside_and_have_the_drawn_area() -> None:
    boxes = draws(configure(cutmix=1.0), 1000)[BOX]
    (top, left), (bottom, right) = boxes[:, :2].T, boxes[:, 2:].T
    assert top.min() == left.min() == 0
    assert (bottom.max(), right.max()) == (10, 20)
    assert ((bottom >= top) & (right >= left)).all()
    area = (bottom - top) * (right - left) / 200
    assert area.mean() == pytest.approx(0.5, abs=0.05)  # uniform, but for whole pixels
    np.testing.assert_allclose((right - left) / 2, bottom - top, atol=1)


def test_with_both_each_example_gets_one_of_them() -> None:
    drawn = draws(configure(mixup=1.0, cutmix=1.0), 400)
    cut = drawn[BOX][:, 2] > drawn[BOX][:, 0]
    assert (drawn[BLEND][cut] == 1).all()
    assert 140 < cut.sum() < 240  # about half, and a few have boxes without pixels


def test_rows_are_only_blended() -> None:
    assert draws(configure(mixup=1.0), 2, form=Rows(3)).keys() == {PARTNER, BLEND}


def test_draws_follow_the_seed() -> None:
    config = configure(mixup=1.0, cutmix=1.0)
    base, again, later = draws(config, 20), draws(config, 20), draws(config, 20, epoch=1)
    for name in base:
        np.testing.assert_array_equal(base[name], again[name])
        assert not np.array_equal(base[name], later[name])


def test_mixing_by_hand() -> None:
    """Two lanes of three; the numbers of a picture are all the same, so that a mean tells the share."""
    config = make_config("", global_batch=6, input={"lanes": 2}, augment={"mixup": 1.0, "cutmix": 1.0})
    values = np.array([10, 20, 30, 40, 50, 60], np.uint8)
    batch = {
        "image": tf.constant(np.broadcast_to(values[:, None, None, None], [6, 2, 4, 3])),
        "label": tf.range(6),
        "weight": tf.constant([1.0, 1, 1, 1, 1, 0]),
        PARTNER: tf.constant([1, 1, 1, 2, 2, 1]),
        BLEND: tf.constant([0.5, 1.0, 1.0, 0.25, 1.0, 1.0]),
        BOX: tf.constant([[0] * 4, [0, 0, 2, 2], [0] * 4, [0] * 4, [1, 1, 2, 3], [0, 0, 2, 4]]),
    }
    mixed = tf.function(mixer(config))(batch)
    assert mixed[OTHER].numpy().tolist() == [1, 2, 0, 5, 3, 3]
    assert mixed[SHARE].numpy().tolist() == [0.5, 0.5, 1.0, 0.25, 0.75, 0.0]
    assert mixed["image"].numpy().mean(axis=(1, 2, 3)).tolist() == [15, 25, 30, 55, 47.5, 40]
    assert mixed["image"][1, :, :, 0].numpy().tolist() == [[30, 30, 20, 20]] * 2
    assert mixed["label"] is not None
    assert mixed["weight"].numpy().tolist() == [1, 1, 1, 1, 1, 0]
    losses = mixed_losses(mixed, "label", lambda targets: tf.cast(targets, tf.float32) * 4)
    assert losses.numpy().tolist() == [2, 6, 8, 18, 15, 12]


def test_cutmix_alone_stays_uint8() -> None:
    config = make_config("", global_batch=2, input={"lanes": 1}, augment={"cutmix": 1.0})
    batch = {"image": tf.zeros([2, 4, 4, 3], tf.uint8), "label": tf.range(2), "weight": tf.ones([2])}
    drawn = {PARTNER: tf.constant([1, 1]), BOX: tf.zeros([2, 4], tf.int32)}
    assert mixer(config)(batch | drawn)["image"].dtype == tf.uint8


def mixed_batches(config: TrainConfig, *, workers: int, steps: int, start: int = 0) -> list[dict[int, Any]]:
    """For each step, by the record: what it was mixed to, its loss under a fixed model, and whether it counts."""
    source = open_source(config)
    task, mix = make_task(source), mixer(config)
    weights = tf.constant(np.random.default_rng(0).normal(size=(8 * 8 * 3, 3)) / 100, tf.float32)
    found: list[dict[int, Any]] = [{} for _ in range(steps)]
    for worker in range(workers):
        share = Share(worker=worker, workers=workers, batch=config.global_batch // workers, threads=2)
        batches = training_dataset(config, source, share, start_step=start)
        for step, batch in enumerate(islice(batches, steps)):
            mixed = mix(batch)
            outputs = tf.reshape(tf.cast(mixed["image"], tf.float32), [-1, 8 * 8 * 3]) @ weights
            losses = mixed_losses(mixed, "label", lambda targets, outputs=outputs: task.losses(outputs, targets))
            rows = zip(
                batch["ordinal"].numpy().tolist(),
                mixed["weight"].numpy().tolist(),
                mixed["image"].numpy(),
                losses.numpy().tolist(),
                strict=True,
            )
            for ordinal, weight, image, loss in rows:
                if weight:
                    found[step][ordinal] = (image.tobytes(), loss)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_mixed_batch_and_its_loss_do_not_depend_on_the_workers(dataset: Path, kind: str) -> None:
    config = configure(dataset, **KINDS[kind])
    alone, together = (mixed_batches(config, workers=workers, steps=4) for workers in (1, 2))
    assert [len(step) for step in alone] == [12, 12, 12, 3]  # the last batch of the epoch is filled up
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        assert all(one[ordinal][0] == other[ordinal][0] for ordinal in one)
        assert [one[n][1] for n in one] == pytest.approx([other[n][1] for n in one], rel=1e-5)
        total = sum(loss for _, loss in one.values())
        assert total == pytest.approx(sum(loss for _, loss in other.values()), rel=1e-5)


def test_a_restart_mixes_the_same(dataset: Path) -> None:
    config = configure(dataset, **KINDS["both"])
    whole, rest = mixed_batches(config, workers=1, steps=4), mixed_batches(config, workers=2, steps=2, start=2)
    assert [{n: row[0] for n, row in step.items()} for step in rest] == [
        {n: row[0] for n, row in step.items()} for step in whole[2:]
    ]


def test_mixing_changes_what_is_learnt(dataset: Path) -> None:
    plain, mixed = (mixed_batches(configure(dataset, **values), workers=1, steps=1)[0] for values in ({}, {"mixup": 1}))
    assert plain.keys() == mixed.keys()
    assert sum(plain[n][1] != pytest.approx(mixed[n][1], rel=1e-3) for n in plain) > 6


@pytest.mark.parametrize("kind", ["multi", "regression"])
def test_rows_with_other_targets_are_mixed(kind: str, tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"train": random_rows(24, kind=kind)}, kind=kind)
    config = configure(data, mixup=1.0)
    source = open_source(config)
    check_training(config, source, workers=2)
    task = make_task(source)
    share = Share(worker=0, workers=1, batch=12, threads=1)
    batch = next(iter(training_dataset(config, source, share, start_step=0)))
    mixed = mixer(config, "features", task.feature)(batch)
    own = batch[BLEND].numpy()[:, None]
    lanes = batch["features"].numpy().reshape(4, 3, -1)
    places = (np.arange(3) + batch[PARTNER].numpy().reshape(4, 3)) % 3
    others = np.take_along_axis(lanes, places[..., None], axis=1).reshape(12, -1)
    np.testing.assert_allclose(mixed["features"], own * batch["features"] + (1 - own) * others, rtol=1e-5)
    outputs = tf.zeros([12, task.outputs])
    losses = mixed_losses(mixed, task.feature, lambda targets: task.losses(outputs, targets)).numpy()
    parts = [task.losses(outputs, mixed[name]).numpy() for name in (task.feature, OTHER)]
    np.testing.assert_allclose(losses, own[:, 0] * parts[0] + (1 - own[:, 0]) * parts[1], rtol=1e-5)


def test_a_lane_must_have_two_in_a_batch(dataset: Path) -> None:
    config = make_config(dataset, global_batch=6, input__lanes=6, augment__cutmix=1.0, evaluate_every_epochs=None)
    message = (
        "^augment.cutmix: an example is mixed with another of its lane, but each of 6 lanes has only one in a "
        "global batch of 6; set input.lanes to at most 3, or a larger global_batch$"
    )
    with pytest.raises(UsageError, match=message):
        check_training(config, open_source(config), workers=1)


def test_replicas_must_have_whole_lanes() -> None:
    config = configure(mixup=1.0, cutmix=1.0)
    check_replicas(config, 4)
    check_replicas(configure(), 6)
    message = (
        "^augment.mixup and augment.cutmix: examples of a lane are mixed, and 4 lanes cannot be dealt whole to 6 "
        "replicas; set input.lanes to a multiple of 6 that divides 12$"
    )
    with pytest.raises(UsageError, match=message):
        check_replicas(config, 6)


def test_rows_have_no_boxes(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, {"train": random_rows(24)})
    with pytest.raises(UsageError, match="^augment.cutmix: for pictures only, and .* has rows of 6 features; remove"):
        open_source(configure(data, mixup=1.0, cutmix=1.0))
