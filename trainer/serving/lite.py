"""The exported model for phones and small devices: TFLite, compared with the model it was made from.

It takes decoded pictures (or rows) and gives numbers, which TFLite can do everywhere. Files and labels stay outside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from shards.errors import ShardsmithError
from shards.files import write_atomically
from trainer.quiet import reason_of

LITE = "model.tflite"
TOLERANCE = 1e-3  # of an answer, relative to the largest
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Parity:
    """How far the converted model's answers about some examples are from the model's."""

    examples: int
    same_first: int  # whose largest number is the same one
    largest: float

    def __str__(self) -> str:
        """Reads like `64 of 64 answers agree, numbers within 3e-07`."""
        return f"{self.same_first} of {self.examples} answers agree, numbers within {self.largest:.0e}"


def export_lite(numbers: Callable[[Any], Any], examples: Numbers, target: Path) -> Parity:
    """Converts the function `numbers` and writes it, if it gives the same answers about `examples`."""
    spec = tf.TensorSpec([None, *examples.shape[1:]], examples.dtype, name="inputs")
    function = tf.function(numbers, input_signature=[spec])
    content = _convert(function)
    parity = compare(function(tf.constant(examples)).numpy(), ask(content, examples))
    if parity.same_first < parity.examples or parity.largest > TOLERANCE:
        raise ShardsmithError(f"the TFLite model differs from the network: {parity}; it was not written")
    write_atomically(target, content)
    return parity


def compare(expected: Numbers, found: Numbers) -> Parity:
    """Compares answers [n, numbers]."""
    same = int((expected.argmax(axis=1) == found.argmax(axis=1)).sum())
    scale = max(1.0, float(np.abs(expected).max()))
    return Parity(len(expected), same, float(np.abs(expected - found).max()) / scale)


def _convert(function: Any) -> bytes:
    # The converter alone leaves Keras variables as variables that nothing ever sets: every answer would be NaN.
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    try:
        return tf.lite.TFLiteConverter.from_concrete_functions([frozen]).convert()
    except Exception as error:  # the converter raises its own private types
        raise ShardsmithError(
            f"this network cannot be converted to TFLite: {reason_of(str(error))}; the SavedModel has been written"
        ) from error


def ask(content: bytes, examples: Numbers) -> Numbers:
    """The answers of a converted model."""
    interpreter = tf.lite.Interpreter(model_content=content)
    [given], [answer] = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], examples.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], examples)
    interpreter.invoke()
    return interpreter.get_tensor(answer["index"])
