"""What decoder processes do for a worker: jobs, each on one input, of which one may take the whole process along."""

from typing import Any, ClassVar, Protocol, TypeVar

from pipelines.config import BuildConfig
from pipelines.values import Fault, InputRef


class Answer(Protocol):
    """What a job comes to."""

    @property
    def weight(self) -> int:
        """How many bytes it takes to hand this over, roughly."""


A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Job(Protocol[A_co]):
    """Something to do with an input; `data` are its bytes if they were read already (from a remote file).

    A `verdict` is a refusal that has been reached; the job then does what is safe, and answers with it.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def ref(self) -> InputRef:
        """The input."""

    @property
    def data(self) -> bytes | None:
        """Its bytes, if they are there."""

    @property
    def verdict(self) -> Fault | None:
        """The refusal, if there is one."""

    def perform(self, config: BuildConfig) -> A_co:
        """The answer; runs in a decoder process."""

    def refuse(self, reason: str, message: str) -> A_co:
        """The answer when not even a refusal could be looked into."""
