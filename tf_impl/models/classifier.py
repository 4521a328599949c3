"""Linear 5-10-2 with ReLU."""

from __future__ import annotations

import keras
from keras import layers


def build(*, inputs: int, hidden: int, outputs: int) -> keras.Model:
    """(batch, inputs) to logits (batch, outputs)."""
    return keras.Sequential(
        [
            layers.Dense(hidden, activation="relu", name="fc"),
            layers.Dense(outputs, name="out"),
            layers.Activation("linear", dtype=keras.config.floatx()),
        ]
    )
