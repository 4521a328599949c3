"""Two linear layers, with or without a ReLU between them, and with or without a layer that the network leaves out."""

from __future__ import annotations

from typing import Any

from keras import layers

from tf_impl.models import Blocks


class Unused(layers.Dense):
    """A layer that the network leaves out. It is called, because a Keras model has no layer that is not; but no output
    depends on its variables, so their gradient is None, unless the tape is told to give zeros."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def blocks(*, inputs: int, hidden: int, outputs: int, relu: int, unused: int = 0) -> Blocks:
    """(batch, inputs) to (batch, outputs)."""
    between: Blocks = {"relu": layers.ReLU()} if relu else {}
    if unused:
        between["unused"] = Unused(hidden, name="unused")
    return {"net1": layers.Dense(hidden, name="net1"), **between, "net2": layers.Dense(outputs, name="net2")}
