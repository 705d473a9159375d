"""What can be set about learning: the network, how its weights move, and when they are saved."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
BadRecord = Literal["stop", "skip"]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Precision = Literal["float32", "bfloat16", "float16"]


class ModelConfig(Settings):
    """The network: `small_cnn`, a name of keras.applications, `mlp` or `package.module:function`.

    Null takes `small_cnn` for pictures and `mlp` for rows of numbers. `image_size` is [height, width] or one side; null
    takes the stored size. `arguments` go to the network's builder. `columns` are numeric columns of the dataset, given
    to the network beside the picture or row. `initial` is what weights are taken from at the start of a run: the output
    of another run or one of its checkpoints, an export, a `.keras` or `.weights.h5` file. `freeze` names layers that
    stay as they are, as globs; `body` is every layer but the last with weights. `precision` is what layers compute in.
    """

    name: str | None = None
    image_size: tuple[Positive, Positive] | None = None
    dropout: Fraction = 0.0
    arguments: dict[str, Any] = Field(default={})
    columns: tuple[str, ...] = ()
    initial: str | None = None
    freeze: tuple[str, ...] = ()
    precision: Precision = "float32"

    def name_for(self, *, rows: bool) -> str:
        """The network's name, for rows of numbers or for pictures."""
        return self.name or ("mlp" if rows else "small_cnn")

    @field_validator("image_size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        if isinstance(size, int):
            return size, size
        return tuple(size) if isinstance(size, list) else size

    @field_validator("columns")
    @classmethod
    def _each_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} is named twice; name each column once")
        return columns


class OptimizerConfig(Settings):
    """How weights move.

    The learning rate rises in a straight line during the warm-up, in steps or epochs, and then follows `schedule`:
    `constant`; `cosine` or `linear` down to `final_learning_rate` at the end of the run; or `step`: times `step_factor`
    at each of `step_epochs`. With `base_batch` both rates are those of a global batch of this size, and are scaled in
    proportion. `clip_norm` is the largest norm of the gradients of the global batch, all weights together. `accumulate`
    computes a replica's batch in so many slices. `ema` is the decay of averaged weights, which are then judged and
    exported in place of the last ones.
    """

    name: Literal["adam", "adamw", "lamb", "lion", "sgd"] = "adam"
    learning_rate: Rate = 1e-3
    base_batch: Positive | None = None
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    final_learning_rate: NotNegative = 0.0
    step_epochs: tuple[Rate, ...] = ()
    step_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup_epochs: NotNegative = 0.0
    momentum: Fraction | None = None
    nesterov: bool = False
    weight_decay: NotNegative = 0.0
    clip_norm: Rate | None = None
    accumulate: Positive = 1
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _momentum_fits(self) -> "OptimizerConfig":
        if self.momentum is not None and self.name != "sgd":
            raise ValueError(f"momentum is a setting of sgd, not of {self.name}; remove it or choose sgd")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is a kind of momentum; set momentum, for example 0.9, or remove it")
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> "OptimizerConfig":
        if self.final_learning_rate and self.schedule not in ("cosine", "linear"):
            raise ValueError(f"final_learning_rate is for cosine and linear, not for {self.schedule}; remove it")
        if self.final_learning_rate > self.learning_rate:
            raise ValueError("final_learning_rate is higher than learning_rate; the rate can only fall")
        if bool(self.step_epochs) != (self.schedule == "step"):
            raise ValueError("step_epochs and the schedule `step` belong together, for example step_epochs: [30, 60]")
        if list(self.step_epochs) != sorted(set(self.step_epochs)):
            raise ValueError("step_epochs must rise, for example [30, 60, 80]")
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("set either warmup_steps or warmup_epochs")
        return self


class LossConfig(Settings):
    """What training minimises; evaluation always reports the plain loss.

    `class_weights` says how much the examples of a class count: alike (`none`), so that all classes do (`balanced`), or
    as given for each label, 1 for those not named. Of several labels it is having one that counts more or less.
    `label_smoothing` takes that share of each target and spreads it evenly over all classes; of several labels each
    moves by that share towards a half.
    """

    label_smoothing: Fraction = 0.0
    class_weights: Literal["none", "balanced"] | dict[str, NotNegative] = "none"


class CheckpointConfig(Settings):
    """How often the state is saved (null: once per epoch; always at the end) and how many saves stay.

    `best` keeps the best one beside them: by `metric` of the evaluation, or by its first one (null).
    """

    every_steps: Positive | None = None
    keep: Positive = 3
    best: bool = True
    metric: str | None = None


class EarlyStoppingConfig(Settings):
    """Ends the run when `patience` evaluations in a row (null: any number) were not better by more than `min_delta`.

    They are compared by `metric`, or by the first metric of the evaluation (null).
    """

    metric: str | None = None
    patience: Positive | None = None
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class FaultsConfig(Settings):
    """What happens when data or numbers go bad.

    `bad_loss`: at a loss that is not finite or above `loss_limit` the run stops, or goes back to its last good
    checkpoint and leaves the batches since then out, at most `most_rollbacks` times. `bad_record`: at a record that
    cannot be read or decoded the run stops, or skips the record.
    """

    bad_loss: Literal["stop", "rollback"] = "stop"
    loss_limit: Annotated[float, Field(gt=0)] | None = None
    most_rollbacks: Positive = 3
    bad_record: BadRecord = "stop"
