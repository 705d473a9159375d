"""When things happen in a run: reports, saves and evaluations, in steps."""

from dataclasses import dataclass

from trainer.config import TrainConfig


@dataclass(frozen=True)
class Schedule:
    """When things happen, in steps; a period of 0 means never."""

    total: int
    log: int
    save: int
    evaluate: int

    def next_stop(self, step: int) -> int:
        """The first step after `step` at which something is due."""
        return min(
            self.total, *(step - step % period + period for period in (self.log, self.save, self.evaluate) if period)
        )

    def is_due(self, period: int, step: int) -> bool:
        """Whether a period ends at `step`; the end of the run ends all that ever happen."""
        return bool(period) and (step % period == 0 or step == self.total)

    def is_missing(self, evaluated: int, step: int) -> bool:
        """Whether the evaluation due at `step` is still to come; `evaluated` is the step of the last one."""
        return evaluated < step and self.is_due(self.evaluate, step)


def make_schedule(config: TrainConfig, records: int) -> Schedule:
    """The periods of the config in steps."""
    epoch = config.order.steps_per_epoch(records)
    return Schedule(
        total=config.total_steps(records),
        log=config.log_every,
        save=config.checkpoint.every_steps or epoch,
        evaluate=(config.evaluate_every_epochs or 0) * epoch,
    )
