"""Two linear layers, with or without a ReLU between them."""

from __future__ import annotations

from keras import layers

from tf_impl.models import Blocks


def blocks(*, inputs: int, hidden: int, outputs: int, relu: int) -> Blocks:
    """(batch, inputs) to (batch, outputs)."""
    between: Blocks = {"relu": layers.ReLU()} if relu else {}
    return {"net1": layers.Dense(hidden, name="net1"), **between, "net2": layers.Dense(outputs, name="net2")}
