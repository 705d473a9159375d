"""Everything that a training run can be told, as one frozen object; the rest of the code never sees flags or YAML."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from shards.order import Order
from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
StrategyName = Literal["auto", "one_device", "mirrored", "multi_worker"]


class SplitsConfig(Settings):
    """Which splits of the dataset are learned from and judged on."""

    train: str = "train"
    evaluate: str = "validation"


class InputConfig(Settings):
    """How the training split is read; `shards.order` explains lanes and runs. `shuffle_records` are held encoded."""

    lanes: Positive = 16
    run: Positive = 32
    shuffle_records: Positive = 4096
    prefetch: Positive = 2  # batches kept ready for each worker


class ModelConfig(Settings):
    """The network: `small_cnn`, a name of keras.applications (random weights), `mlp` or `package.module:function`.

    Null takes `small_cnn` for pictures and `mlp` for rows of numbers. `image_size` is [height, width] or one side; null
    takes the stored size. `arguments` go to the network's builder.
    """

    name: str | None = None
    image_size: tuple[Positive, Positive] | None = None
    dropout: Fraction = 0.0
    arguments: dict[str, Any] = Field(default={})

    def name_for(self, *, rows: bool) -> str:
        """The network's name, for rows of numbers or for pictures."""
        return self.name or ("mlp" if rows else "small_cnn")

    @field_validator("image_size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        if isinstance(size, int):
            return size, size
        return tuple(size) if isinstance(size, list) else size


class OptimizerConfig(Settings):
    """How weights move; cosine goes from `learning_rate` to 0 over the whole run."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    momentum: Fraction | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _momentum_fits(self) -> "OptimizerConfig":
        if self.momentum is not None and self.name != "sgd":
            raise ValueError(f"momentum is a setting of sgd, not of {self.name}; remove it or choose sgd")
        return self


class AugmentConfig(Settings):
    """Random changes to training pictures, each decided by (seed, epoch, record) alone.

    `crop` cuts the model's image size out of larger stored pictures: anywhere in training, in the middle otherwise.
    """

    flip: bool = False
    shift: Annotated[int, Field(ge=0)] = 0  # pixels, in each direction
    crop: bool = False


class CheckpointConfig(Settings):
    """How often the state is saved (null: once per epoch; always at the end) and how many saves stay."""

    every_steps: Positive | None = None
    keep: Positive = 3


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
    augment: AugmentConfig = AugmentConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log_every: Positive = 50
    evaluate_every_epochs: Positive | None = 1
    strategy: StrategyName = "auto"
    deterministic: bool = False  # bit-identical results on the same hardware; slower, most of all on GPUs

    @model_validator(mode="after")
    def _one_length(self) -> "TrainConfig":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("set either epochs or steps, the length of the run")
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
        free = {"dataset", "output", "epochs", "steps", "checkpoint", "log_every", "evaluate_every_epochs", "strategy"}
        return self.model_dump(mode="json", exclude=dict.fromkeys(free, True) | {"input": {"prefetch"}})
