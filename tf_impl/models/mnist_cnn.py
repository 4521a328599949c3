"""The convolutional network of the MNIST examples."""

from __future__ import annotations

import keras
from keras import layers


def build(*, channels1: int, channels2: int, hidden: int, classes: int) -> keras.Model:
    """(batch, 28, 28, 1) to log-probabilities (batch, classes)."""
    return keras.Sequential(
        [
            layers.Conv2D(channels1, 5, activation="relu", name="conv1"),
            layers.MaxPool2D(2),
            layers.Conv2D(channels2, 5, activation="relu", name="conv2"),
            layers.MaxPool2D(2),
            layers.Flatten(),  # (height, width, channel) order: canonical
            layers.Dense(hidden, activation="relu", name="fc1"),
            layers.Dense(classes, name="fc2"),
            layers.Activation("log_softmax", dtype=keras.config.floatx()),
        ]
    )
