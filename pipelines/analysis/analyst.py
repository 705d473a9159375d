"""A process of its own for tf.Transform: TensorFlow loads while shards are written, and its memory goes with it."""

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipelines.config import BuildConfig
from pipelines.values import Content
from shards.errors import ShardsmithError
from shards.quiet import captured_stderr


@dataclass(frozen=True)
class Analysis:
    """What to analyse: facts files, where the SavedModel goes, and what the graph must know."""

    files: Sequence[Path]
    output: Path
    labels: Sequence[str]
    config: BuildConfig
    content: Content
    options: Mapping[str, Any]


class Analyzer(Protocol):
    """Whoever answers an analysis."""

    def run(self, analysis: Analysis, /) -> dict[str, int]:
        """Saves the SavedModel at `output`/transform_fn and returns how often each label was counted."""


@dataclass(frozen=True)
class Analyst:
    """Runs analyses in the other process, one at a time."""

    executor: Executor

    def run(self, analysis: Analysis) -> dict[str, int]:
        """Saves the SavedModel at `output`/transform_fn and returns how often each label was counted."""
        try:
            return self.executor.submit(_run, analysis).result()
        except BrokenProcessPool as error:
            problem = "tf.Transform's process died, probably for lack of memory; run the build again"
            raise ShardsmithError(problem) from error


@contextmanager
def start_analyst() -> Iterator[Analyst]:
    """Starts the process and lets it load TensorFlow; ends it with the block."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        executor.submit(_load)
        try:
            yield Analyst(executor)
        finally:
            # At once: nobody should wait for TensorFlow to load before reading an error, or to unload after success.
            for child in multiprocessing.active_children():
                child.terminate()


def _load() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Else `import tensorflow` also loads Keras 3, scikit-learn and SciPy: two seconds and 70 MB for nothing.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # it logs a traceback for each failure that we explain
    with captured_stderr(os.devnull):
        import pipelines.analysis.transform  # noqa: F401


def _end_with_parent() -> None:
    """Nobody else tells this process that the one that it works for was killed."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _run(analysis: Analysis) -> dict[str, int]:
    from apache_beam.options.pipeline_options import PipelineOptions

    from pipelines.analysis.transform import analyze_facts, read_label_frequencies

    analyze_facts(
        analysis.files,
        analysis.output,
        labels=analysis.labels,
        config=analysis.config,
        content=analysis.content,
        options=PipelineOptions.from_dictionary(dict(analysis.options)),
    )
    return read_label_frequencies(analysis.output / "transform_fn")
