"""An example of a source that is a function: `configs.digits_function:digits`, used by configs/python.yaml."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def digits(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """scikit-learn's handwritten digits, one at a time: 8x8 grey values as uint8, and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images[:limit], data.target, strict=False)):
        yield {"image": np.rint(image * 255 / 16).astype(np.uint8), "label": label, "id": f"digit_{number:04d}"}
