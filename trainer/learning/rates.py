"""The learning rate of every step, as a pure function of the step; `optimizer` gives it to TensorFlow."""

from dataclasses import dataclass

from shards.errors import UsageError
from trainer.config import TrainConfig


@dataclass(frozen=True)
class Rates:
    """How the learning rate goes over a run of `total` steps.

    It reaches `peak` after `warmup` steps. `drops` are the steps at which it is multiplied by `factor`.
    """

    schedule: str
    peak: float
    final: float
    warmup: int
    total: int
    drops: tuple[int, ...]
    factor: float

    def __str__(self) -> str:
        """Reads like `0.4 after 100 steps of warm-up, then cosine to 0`."""
        warm = f" after {self.warmup:,} steps of warm-up" if self.warmup else ""
        then = {
            "constant": "",
            "cosine": f", then cosine to {self.final:g}",
            "linear": f", then linear to {self.final:g}",
            "step": f", times {self.factor:g} at steps {', '.join(f'{step:,}' for step in self.drops)}",
        }
        return f"{self.peak:.6g}{warm}{then[self.schedule]}"


def plan_rates(config: TrainConfig, *, records: int) -> Rates:
    """The rates that the config asks for, in steps of its global batch over a split of `records` examples."""
    chosen, epoch, total = config.optimizer, config.order.steps_per_epoch(records), config.total_steps(records)
    scale = config.global_batch / chosen.base_batch if chosen.base_batch else 1.0
    warmup = chosen.warmup_steps or round(chosen.warmup_epochs * epoch)
    if warmup >= total:
        raise UsageError(
            f"a warm-up of {warmup} steps leaves nothing of a run of {total}; "
            "set optimizer.warmup_steps or warmup_epochs lower, or train longer"
        )
    return Rates(
        schedule=chosen.schedule,
        peak=chosen.learning_rate * scale,
        final=chosen.final_learning_rate * scale,
        warmup=warmup,
        total=total,
        drops=tuple(round(each * epoch) for each in chosen.step_epochs),
        factor=chosen.step_factor,
    )
