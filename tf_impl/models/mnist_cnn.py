"""The convolutional network of the MNIST examples."""

from __future__ import annotations

import keras
from keras import layers

from tf_impl.models import Blocks


def blocks(*, channels1: int, channels2: int, hidden: int, classes: int) -> Blocks:
    """(batch, 28, 28, 1) to log-probabilities (batch, classes)."""
    return {
        "conv1": layers.Conv2D(channels1, 5, name="conv1"),
        "relu1": layers.ReLU(),
        "pool1": layers.MaxPool2D(2),
        "conv2": layers.Conv2D(channels2, 5, name="conv2"),
        "relu2": layers.ReLU(),
        "pool2": layers.MaxPool2D(2),
        "flatten": layers.Flatten(),  # in the canonical order: height, width, channel
        "fc1": layers.Dense(hidden, name="fc1"),
        "relu3": layers.ReLU(),
        "fc2": layers.Dense(classes, name="fc2"),
        # the logarithm needs the parameters' precision even when the layers compute in bfloat16
        "log_softmax": layers.Activation("log_softmax", dtype=keras.config.floatx()),
    }
