"""Imports TensorFlow without its start-up chatter, so that a person sees only what concerns the training."""

import contextlib
import os
import warnings
from collections.abc import Iterator


def import_tensorflow() -> None:
    """Imports TensorFlow for the first time; a level that the user chose by TF_CPP_MIN_LOG_LEVEL is kept."""
    chosen = "TF_CPP_MIN_LOG_LEVEL" in os.environ
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with contextlib.nullcontext() if chosen else _muted_stderr():
        import tensorflow as tf
    if not chosen:
        tf.get_logger().setLevel("ERROR")
        warnings.filterwarnings("ignore", module=r"keras\.|tensorflow\.")


@contextlib.contextmanager
def _muted_stderr() -> Iterator[None]:
    # TensorFlow's libraries write to the file descriptor itself before any log level can be set.
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
