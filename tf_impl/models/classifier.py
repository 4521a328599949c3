"""Linear 5-10-2 with ReLU."""

from __future__ import annotations

from keras import layers

from tf_impl.models import Blocks


def blocks(*, inputs: int, hidden: int, outputs: int) -> Blocks:
    """(batch, inputs) to logits (batch, outputs)."""
    return {
        "fc": layers.Dense(hidden, name="fc"),
        "relu": layers.ReLU(),
        "out": layers.Dense(outputs, name="out"),
    }
