"""Which records a training run reads at which step: the order of `shards.order`, epoch after epoch. No TensorFlow."""

from collections.abc import Iterator

from shards.order import Block, Ints, training_blocks
from trainer.config import TrainConfig
from trainer.reading.sampling import classes_to_balance
from trainer.reading.source import Split


def training_plan(
    config: TrainConfig, split: Split, *, worker: int, workers: int, start_step: int
) -> Iterator[tuple[int, Block]]:
    """Yields one worker's (epoch, block) from `start_step` on, without end."""
    classes = classes_to_balance(config, split)
    epoch, first = divmod(start_step, config.order.steps_per_epoch(split.draws(config.input.sampling)))
    while True:
        for block in training_blocks(
            split.shard_records,
            config.order,
            epoch=epoch,
            worker=worker,
            workers=workers,
            start_step=first,
            classes=classes,
        ):
            yield epoch, block
        epoch, first = epoch + 1, 0


def global_batches(config: TrainConfig, split: Split, *, start_step: int) -> Iterator[Ints]:
    """Yields the ordinals that count in each global batch from `start_step` on, in lane order, without end."""
    size = config.global_batch
    for _, block in training_plan(config, split, worker=0, workers=1, start_step=start_step):
        for begin in range(0, len(block.ordinals), size):
            batch = slice(begin, begin + size)
            yield block.ordinals[batch][block.weights[batch] > 0]
