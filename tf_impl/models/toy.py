"""Two linear layers, with or without ReLU between."""

from __future__ import annotations

import keras
from keras import layers


def build(*, inputs: int, hidden: int, outputs: int, relu: int) -> keras.Model:
    """(batch, inputs) to (batch, outputs)."""
    return keras.Sequential(
        [
            layers.Dense(hidden, activation="relu" if relu else None, name="net1"),
            layers.Dense(outputs, name="net2"),
            layers.Activation("linear", dtype=keras.config.floatx()),
        ]
    )
