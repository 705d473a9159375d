"""Imports TensorFlow without its start-up chatter, so that a person sees only what concerns the training."""

import contextlib
import os
import re
import warnings

from shards.quiet import captured_stderr


def import_tensorflow() -> None:
    """Imports TensorFlow for the first time; a level that the user chose by TF_CPP_MIN_LOG_LEVEL is kept."""
    chosen = "TF_CPP_MIN_LOG_LEVEL" in os.environ
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with contextlib.nullcontext() if chosen else captured_stderr(os.devnull):
        import tensorflow as tf
    if not chosen:
        tf.get_logger().setLevel("ERROR")
        warnings.filterwarnings("ignore", module=r"keras\.|tensorflow\.")


def reason_of(message: str) -> str:
    """The one line of TensorFlow's error message that tells what is wrong, without its graph and stack."""
    lines = [line.strip() for line in message.partition("[[{{node")[0].splitlines() if line.strip()]
    reason = lines[-1] if lines else message
    return reason.rpartition("}} ")[2]


def own_words(message: str) -> str | None:
    """The text of a ShardsmithError that was raised inside TensorFlow, in a function of ours; None if it is not one."""
    found = re.search(r"ShardsmithError: (.*?)\nTraceback ", message, re.DOTALL)
    return found and found[1]
