"""Small networks, each with one thing that a restart could lose."""

from typing import Any

import keras


def plain(*, image_size: tuple[int, int], classes: int, dropout: float) -> Any:
    """Convolutions alone."""
    return _network(image_size, classes)


def with_dropout(*, image_size: tuple[int, int], classes: int, dropout: float) -> Any:
    """Two random layers."""
    return _network(image_size, classes, keras.layers.Dropout(0.3), keras.layers.GaussianNoise(0.1))


def with_batch_norm(*, image_size: tuple[int, int], classes: int, dropout: float) -> Any:
    """Moving statistics."""
    return _network(image_size, classes, keras.layers.BatchNormalization(momentum=0.9))


def with_both(*, image_size: tuple[int, int], classes: int, dropout: float) -> Any:
    """Moving statistics and a random layer."""
    return _network(image_size, classes, keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dropout(0.3))


def _network(image_size: tuple[int, int], classes: int, *layers: Any) -> Any:
    head = [keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((*image_size, 3)), keras.layers.Conv2D(2, 3, strides=2), *layers, *head])
