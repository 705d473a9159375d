"""Settings held against the dataset before anything starts: what does not fit is refused, with what to change."""

from shards.errors import UsageError
from shards.manifest import Manifest, SplitEntry
from trainer.config import TrainConfig
from trainer.reading.source import Source


def check_training(config: TrainConfig, source: Source, *, workers: int) -> None:
    """Refuses numbers that do not fit together (batch, lanes, workers, examples), and what the labels do not allow."""
    config.order.check_workers(workers)
    _check_splits(config, source.manifest)
    _check_sampling(config, source)
    _check_mixing(config)
    split: SplitEntry = source.manifest.split(config.splits.train)
    if split.records < config.global_batch:
        most = split.records // config.input.lanes * config.input.lanes
        remedy = f"set global_batch to at most {most}" if most else "set both global_batch and input.lanes lower"
        raise UsageError(
            f"split {split.name!r} has {split.records} examples, fewer than one global batch of {config.global_batch}; "
            f"{remedy} (it must be a multiple of input.lanes, which is {config.input.lanes})"
        )
    if config.evaluate_every_epochs is not None:
        source.split(config.splits.evaluate)
    if config.loss.label_smoothing and source.label_kind == "regression":
        raise UsageError(f"loss.label_smoothing is for classes, and {config.dataset} has numbers to predict; remove it")


def _check_sampling(config: TrainConfig, source: Source) -> None:
    if config.input.sampling == "balanced" and source.label_kind != "single":
        raise UsageError(
            f"input.sampling balanced needs one class per example; {config.dataset} has examples {source.goal}; "
            "set input.sampling to natural"
        )


def _check_mixing(config: TrainConfig) -> None:
    if config.augment.mixes and config.model.columns:
        raise UsageError(
            f"{config.augment.mixes}: pictures would be mixed, but not the columns that belong to them; "
            "leave out model.columns or the mixing"
        )
    if config.augment.mixes and config.order.per_lane < 2:
        raise UsageError(
            f"{config.augment.mixes}: an example is mixed with another of its lane, but each of {config.input.lanes} "
            f"lanes has only one in a global batch of {config.global_batch}; set input.lanes to at most "
            f"{config.global_batch // 2}, or a larger global_batch"
        )


def _check_splits(config: TrainConfig, manifest: Manifest) -> None:
    names = [split.name for split in manifest.splits]
    asked = {"train": config.splits.train}
    if config.evaluate_every_epochs is not None:
        asked["evaluate"] = config.splits.evaluate
    for role, name in asked.items():
        if name not in names:
            raise UsageError(
                f"the dataset has no split {name!r} to {role}; it has {', '.join(names)}; "
                f"choose one with --set splits.{role}=NAME"
            )


def check_replicas(config: TrainConfig, replicas: int) -> None:
    """Refuses a global batch that the replicas cannot share evenly."""
    if config.global_batch % replicas:
        raise UsageError(
            f"global_batch {config.global_batch} cannot be shared by {replicas} replicas; "
            f"choose a multiple of {replicas}"
        )
    if config.global_batch // replicas % config.optimizer.accumulate:
        raise UsageError(
            f"optimizer.accumulate {config.optimizer.accumulate} does not divide the {config.global_batch // replicas} "
            f"examples of each of {replicas} replicas; choose another, or another global_batch"
        )
    if config.augment.mixes and config.input.lanes % replicas:
        raise UsageError(
            f"{config.augment.mixes}: examples of a lane are mixed, and {config.input.lanes} lanes cannot be dealt "
            f"whole to {replicas} replicas; set input.lanes to a multiple of {replicas} that divides "
            f"{config.global_batch}"
        )
