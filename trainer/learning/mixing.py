"""Mixup and cutmix: each example is mixed with another of the same global batch, and learnt as a bit of both.

The other is one of the same lane. A lane is never shared by workers, so the mixed batch is the same for any number of
them. Who it is, and the shares of both, are drawn with the record's seed when the record is read; the pictures meet
late, in the training step.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.config import TrainConfig
from trainer.reading.crops import inside
from trainer.reading.seeds import Use, fold, uniform
from trainer.reading.source import Geometry, Rows

Tensor = Any
Batch = dict[str, Tensor]
PARTNER, BLEND, BOX = "mix_partner", "mix_blend", "mix_box"  # drawn: places ahead in the lane; own share; other's part
OTHER, SHARE = "mix_other", "mix_share"  # after mixing: the other's target, and how much the own one counts


def draw_mix(config: TrainConfig, *, seed: Tensor, form: Geometry | Rows) -> Batch:
    """How a record, in the form in which the network is given it, is to be mixed; nothing if examples are not mixed."""
    mixup, cutmix = config.augment.mixup, config.augment.cutmix
    if not mixup and not cutmix:
        return {}
    place, coin, *corner = tf.unstack(uniform(seed, Use.MIX, (4,)))
    is_cutmix = coin < (0.5 if mixup and cutmix else float(bool(cutmix)))
    share = _beta(tf.where(is_cutmix, cutmix, mixup), seed=fold(seed, Use.BETA))
    drawn = {PARTNER: 1 + tf.cast(place * (config.order.per_lane - 1), tf.int32)}
    if mixup:
        drawn[BLEND] = tf.where(is_cutmix, 1.0, share)
    if cutmix and isinstance(form, Geometry):
        drawn[BOX] = tf.where(is_cutmix, _draw_box(share, form.size, corner), 0)
    return drawn


def _beta(alpha: Tensor, *, seed: Tensor) -> Tensor:
    """A draw from Beta(alpha, alpha): the share of one of two gamma variables in their sum.

    Small alphas make these too small for a float. Gamma(alpha) is Gamma(alpha + 1) times a uniform number to the power
    of 1 / alpha, and the logarithms of those are not.
    """
    logs = tf.math.log(tf.random.stateless_gamma([2], seed, alpha + 1.0))
    logs += tf.math.log(1 - uniform(seed, Use.BETA, (2,))) / alpha
    return tf.sigmoid(logs[0] - logs[1])


def _draw_box(share: Tensor, size: tuple[int, int], corner: list[Tensor]) -> Tensor:
    """The part of a picture [top, left, bottom, right] that leaves `share` of it, anywhere inside."""
    whole = tf.constant(size, tf.float32)
    sides = tf.round(tf.sqrt(1 - share) * whole)
    first = tf.floor(tf.stack(corner) * (whole - sides + 1))
    return tf.cast(tf.concat([first, first + sides], axis=0), tf.int32)


class Mixer:
    """Mixes a replica's batch, which must consist of whole lanes."""

    def __init__(self, config: TrainConfig, *, given: str, target: str) -> None:
        """`given` and `target` are what the network is given and should say, by their names in the batch."""
        self._per_lane, self._given, self._target = config.order.per_lane, given, target

    def __call__(self, batch: Batch) -> Batch:
        """The batch with pictures or rows mixed as was drawn, the others' targets and the own shares."""
        if PARTNER not in batch:
            return batch
        partners = self._partners(batch[PARTNER])
        given, other = batch[self._given], tf.gather(batch[self._given], partners)
        share = tf.ones_like(batch["weight"])
        if BOX in batch:
            part = inside(batch[BOX], given.shape[1:3])
            given = tf.where(part[..., tf.newaxis], other, given)
            share -= tf.reduce_mean(tf.cast(part, share.dtype), axis=[1, 2])
        if BLEND in batch:
            share *= batch[BLEND]
            own = tf.reshape(batch[BLEND], [-1] + [1] * (len(given.shape) - 1))
            given = own * tf.cast(given, tf.float32) + (1 - own) * tf.cast(other, tf.float32)
        return batch | {self._given: given, OTHER: tf.gather(batch[self._target], partners), SHARE: share}

    def _partners(self, ahead: Tensor) -> Tensor:
        """Where in the batch each example's partner is: some places ahead in its lane, round and round."""
        place = tf.range(tf.shape(ahead)[0])
        return place // self._per_lane * self._per_lane + (place + ahead) % self._per_lane


def mixed_losses(batch: Batch, target: str, losses: Callable[[Tensor], Tensor]) -> Tensor:
    """The loss of each example, from `losses` of some targets: that of its own and of the other's, by their shares."""
    own = losses(batch[target])
    if OTHER not in batch:
        return own
    return batch[SHARE] * own + (1 - batch[SHARE]) * losses(batch[OTHER])
