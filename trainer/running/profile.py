"""A trace of a few training steps, for TensorBoard's profiler."""

from pathlib import Path

import tensorflow as tf

from trainer.running.report import TENSORBOARD

WARM_UP = 10  # steps before the trace: the first ones trace graphs, fill buffers and read ahead
STEPS = 5


class Profile:
    """Traces some steps of this process once the run is warm; a short run is traced from its last step on."""

    def __init__(self, output: Path, *, first_step: int, total: int) -> None:
        """Nothing is traced yet."""
        self._logs = output / TENSORBOARD
        self._begin = min(first_step + WARM_UP, total - 1)
        self._end = min(self._begin + STEPS, total)
        self._tracing = False

    def cut(self, step: int, steps: int) -> int:
        """How many of the next `steps` steps to do before the trace begins or ends."""
        borders = [border - step for border in (self._begin, self._end) if border > step]
        return min(steps, *borders) if borders else steps

    def reach(self, step: int) -> None:
        """Begins or ends the trace if it is time."""
        if self._tracing and step >= self._end:
            self.close(step)
        elif not self._tracing and self._begin <= step < self._end:
            tf.profiler.experimental.start(str(self._logs))
            self._begin, self._tracing = step, True

    def close(self, step: int) -> None:
        """Writes the trace, if there is one, and says how to look at it."""
        if not self._tracing:
            return
        tf.profiler.experimental.stop()
        self._tracing, self._end = False, step
        print(
            f"profiled steps {self._begin + 1} to {step}; to see them, open the tab Profile of: "
            f"tensorboard --logdir {self._logs} "
            "(needs the packages tensorboard and tensorboard-plugin-profile)",
            flush=True,
        )
