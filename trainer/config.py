"""Everything that a training run can be told, as one frozen object; the rest of the code never sees flags or YAML."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shards.order import Order
from shards.settings import Settings
from trainer.judging.settings import EvaluationConfig
from trainer.learning.settings import (
    CheckpointConfig,
    EarlyStoppingConfig,
    FaultsConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
)
from trainer.reading.settings import AugmentConfig, InputConfig, SplitsConfig

Positive = Annotated[int, Field(ge=1)]
NOT_SHAPING_INPUT = {"prefetch", "cache", "cache_folder", "cache_gb"}  # how records get here, not which
StrategyName = Literal["auto", "one_device", "mirrored", "multi_worker"]


class TrainConfig(Settings):
    """One training run: a dataset, an output directory and everything that shapes the weights between them."""

    dataset: str
    output: str
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    epochs: Positive | None = None
    steps: Positive | None = None
    global_batch: Positive = 64
    splits: SplitsConfig = SplitsConfig()
    input: InputConfig = InputConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    augment: AugmentConfig = AugmentConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    faults: FaultsConfig = FaultsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    log_every: Positive = 50
    evaluate_every_epochs: Positive | None = 1
    strategy: StrategyName = "auto"
    deterministic: bool = False  # bit-identical results on the same hardware; slower, most of all on GPUs

    @model_validator(mode="after")
    def _settings_fit(self) -> "TrainConfig":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("set either epochs or steps, the length of the run")
        if self.early_stopping.patience and self.evaluate_every_epochs is None:
            raise ValueError("early_stopping.patience counts evaluations; set evaluate_every_epochs")
        return self

    @model_validator(mode="after")
    def _slices_fit(self) -> "TrainConfig":
        if self.global_batch % self.optimizer.accumulate:
            raise ValueError(
                f"optimizer.accumulate {self.optimizer.accumulate} does not divide global_batch {self.global_batch}; "
                "choose one that divides what each replica gets"
            )
        return self

    @property
    def order(self) -> Order:
        """The reading order that this run follows."""
        window = max(1, self.input.shuffle_records // self.input.lanes)
        return Order(
            seed=self.seed, global_batch=self.global_batch, lanes=self.input.lanes, run=self.input.run, window=window
        )

    def total_steps(self, records: int) -> int:
        """The step at which the run is finished."""
        return self.steps or (self.epochs or 0) * self.order.steps_per_epoch(records)

    def shaping(self) -> dict[str, Any]:
        """The settings that a resumed run must share with its beginning: not where things are, how long, how often."""
        free = {
            "dataset",
            "output",
            "epochs",
            "steps",
            "checkpoint",
            "early_stopping",
            "faults",
            "evaluation",
            "log_every",
            "evaluate_every_epochs",
            "strategy",
        }
        return self.model_dump(mode="json", exclude=dict.fromkeys(free, True) | {"input": NOT_SHAPING_INPUT})
