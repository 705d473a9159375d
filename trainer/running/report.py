"""Tells how training goes: on the terminal, in metrics.jsonl and in TensorBoard's event files."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.progress import BarColumn, Progress, TextColumn

from shards.files import write_atomically
from trainer.judging.results import Evaluation

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
BLOBS = 3  # DATA_CLASS_BLOB_SEQUENCE of summary.proto


@dataclass(frozen=True)
class TrainMetrics:
    """Means over the steps since the last report; `noun` is what an example is, the rate that of the last step.

    `waiting` is the share of its time that each worker waited for input, `skipped` how many examples were damaged.
    """

    step: int
    epoch: float
    loss: float
    score_name: str
    score: float
    learning_rate: float
    noun: str
    per_second: float
    waiting: tuple[float, ...]
    skipped: int

    def as_dict(self) -> dict[str, float]:
        """The numbers by their names in files."""
        by_worker = {f"waiting_{worker}": share for worker, share in enumerate(self.waiting)}
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": self.loss,
            self.score_name: self.score,
            "learning_rate": self.learning_rate,
            f"{self.noun}_per_second": self.per_second,
            "waiting": max(self.waiting),
            **(by_worker if len(by_worker) > 1 else {}),
            "skipped_examples": self.skipped,
        }

    def __str__(self) -> str:
        """The line for the terminal; of several workers it names the one that waited most."""
        worst = max(self.waiting)
        whose = f" (worker {self.waiting.index(worst)})" if len(self.waiting) > 1 else ""
        return (
            f"epoch {self.epoch:.1f}  loss {self.loss:.4f}  {self.score_name} {self.score:.4f}  "
            f"{self.per_second:,.0f} {self.noun}/s  waiting {100 * worst:.0f} %{whose}"
            + (f"  skipped {self.skipped}" if self.skipped else "")
        )


class Reporter:
    """Shows metrics to the person; keeps them on disk as well when `output` is given (the chief's)."""

    def __init__(self, total_steps: int, *, first_step: int, evaluated: int, output: Path | None) -> None:
        """Continues the files of a resumed run after `first_step`, and after the evaluation at step `evaluated`."""
        self._total = total_steps
        self._started, self._first = time.monotonic(), first_step
        self._log = _continue_metrics(output / METRICS, first_step, evaluated) if output else None
        self._events = tf.summary.create_file_writer(str(output / TENSORBOARD)) if output else None
        self._progress = _progress_bar() if sys.stdout.isatty() else None
        self._task = self._progress.add_task("train", total=total_steps, text="") if self._progress else None

    def __enter__(self) -> "Reporter":
        """Shows the progress bar, if there is a terminal."""
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the last state on the screen and closes the files."""
        if self._progress:
            self._progress.stop()
        if self._log:
            self._log.close()
        if self._events:
            self._events.close()

    def training(self, metrics: TrainMetrics) -> None:
        """Reports the means of the last steps."""
        self._keep("train", metrics.step, metrics.as_dict())
        text = f"{metrics}  ETA {self._remaining(metrics.step)}"
        if self._progress and self._task is not None:
            self._progress.update(self._task, completed=metrics.step, text=text)
        else:
            print(f"step {metrics.step}/{self._total}  {text}", flush=True)

    def rollback(self, step: int, epoch: float, *, loss: float | str, back_to: int) -> None:
        """Keeps that the weights after `step` are those of `back_to`, because of a bad loss."""
        values = {"step": step, "epoch": epoch, "loss": loss, "skipped_steps": [back_to + 1, step]}
        if self._log:
            self._log.write(json.dumps({"split": "train"} | values) + "\n")
            self._log.flush()

    def evaluation(self, result: Evaluation) -> None:
        """Reports the result of a pass over the evaluation split."""
        values = {"step": result.step, "loss": result.loss, **result.metrics, "examples": result.examples}
        self._keep(result.split, result.step, values | ({"skipped": result.skipped} if result.skipped else {}))
        say = self._progress.console.print if self._progress else print
        told = "  ".join(f"{name} {value:.4f}" for name, value in (result.metrics | {"loss": result.loss}).items())
        say(f"step {result.step}/{self._total}  {result.split}: {told}  ({result.counted})")

    def _remaining(self, step: int) -> timedelta:
        spent = time.monotonic() - self._started
        return timedelta(seconds=round(spent / max(1, step - self._first) * (self._total - step)))

    def _keep(self, split: str, step: int, values: dict[str, Any]) -> None:
        if self._log:
            self._log.write(json.dumps({"split": split} | values) + "\n")
            self._log.flush()
        if self._events:
            with self._events.as_default():
                _write_scalars(split, values, step)
            self._events.flush()


def write_images(output: Path, split: str, pictures: Mapping[str, bytes], step: int) -> None:
    """Writes PNG pictures to TensorBoard's event files."""
    # As with scalars, what tf.summary.image writes does not need the tensorboard package.
    metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "images"}, data_class=BLOBS)
    with tf.summary.create_file_writer(str(output / TENSORBOARD)).as_default() as writer:
        for name, png in pictures.items():
            height, width, _ = tf.io.decode_png(png).shape
            image = tf.constant([str(width).encode(), str(height).encode(), png])
            tf.summary.write(f"{split}/{name}", image, step=step, metadata=metadata)
        writer.close()


def _progress_bar() -> Progress:
    return Progress(BarColumn(bar_width=20), TextColumn("step {task.completed}/{task.total}  {task.fields[text]}"))


def _continue_metrics(path: Path, step: int, evaluated: int) -> Any:
    """Opens the metrics for appending, without the lines of steps and evaluations that will be done again."""
    rows = [(line, json.loads(line)) for line in _lines(path)]
    # Only lines about training have an epoch: the evaluation split may be called train, too.
    kept = [line for line, row in rows if row["step"] <= (step if "epoch" in row else evaluated)]
    write_atomically(path, "".join(kept).encode())
    return path.open("a", encoding="utf-8")


def _lines(path: Path) -> Iterable[str]:
    if not path.is_file():
        return []
    # A line without its end was cut off by a crash.
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _write_scalars(split: str, values: dict[str, Any], step: int) -> None:
    # tf.summary.scalar needs the tensorboard package; the event it writes does not.
    metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
    for name, value in values.items():
        if name != "step":
            tf.summary.write(f"{split}/{name}", tf.constant(value, tf.float32), step=step, metadata=metadata)
