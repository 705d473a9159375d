"""What can be set about judging a model."""

from typing import Annotated

from pydantic import Field

from shards.settings import Settings


class EvaluationConfig(Settings):
    """How a split is judged; neither setting changes the weights.

    A batch always holds the same `batch` examples, on any number of workers, so that each example is computed in the
    same company everywhere. `mistakes` is how many of the worst ones `evaluate` lists and shows.
    """

    batch: Annotated[int, Field(ge=1)] = 64
    mistakes: Annotated[int, Field(ge=0, le=1000)] = 50
