"""A trace of a few training steps, for TensorBoard's profiler."""

from pathlib import Path

import tensorflow as tf

from trainer.running.report import TENSORBOARD

WARM_UP = 10  # steps before the trace: the first ones build graphs, fill buffers and read ahead
STEPS = 5


class Profile:
    """Traces some steps of this process, if `wanted`, once the run is warm; of a short run it traces the last step."""

    def __init__(self, output: str, *, first_step: int, total: int, wanted: bool) -> None:
        """Nothing is traced yet."""
        self._logs = Path(output) / TENSORBOARD
        self._begin = min(first_step + WARM_UP, total - 1) if wanted else total
        self._end = min(self._begin + STEPS, total)
        self._traced_from: int | None = None

    def cut(self, step: int, steps: int) -> int:
        """How many of the next `steps` steps to do before the trace begins or ends."""
        return min([steps, *(border - step for border in (self._begin, self._end) if border > step)])

    def reach(self, step: int) -> None:
        """Begins or ends the trace if it is time."""
        if self._traced_from is not None and step >= self._end:
            self._tell(self._traced_from, step)
        elif self._traced_from is None and self._begin <= step < self._end:
            tf.profiler.experimental.start(str(self._logs))
            self._traced_from = step

    def _tell(self, first: int, end: int) -> None:
        tf.profiler.experimental.stop()
        self._traced_from = None
        print(
            f"profiled steps {first + 1} to {end}; to see them, open the tab Profile of: "
            f"tensorboard --logdir {self._logs} (needs the packages tensorboard and tensorboard-plugin-profile)",
            flush=True,
        )

    def __enter__(self) -> "Profile":
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drops a trace that a failure cut short."""
        if self._traced_from is not None:
            tf.profiler.experimental.stop(save=False)
