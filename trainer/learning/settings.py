"""What can be set about learning: the network, how its weights move, and when they are saved."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


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


class CheckpointConfig(Settings):
    """How often the state is saved (null: once per epoch; always at the end) and how many saves stay."""

    every_steps: Positive | None = None
    keep: Positive = 3
