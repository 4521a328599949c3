"""A part of a network whose mathematics is not written in NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from harness.layers.base import Parameter, Shape
from harness.spec.arrays import Arrays


@dataclass(frozen=True, kw_only=True)
class Opaque:
    """A network, or one block of it, of which only parameters and shapes are known.

    There is no golden reference of such a network: the models of the frameworks are judged by each other. `operations`:
    those of one sample's forward pass; by default, two for each number in its parameters, as in linear layers.
    """

    tensors: tuple[Parameter, ...]
    outputs: Shape  # for one sample
    operations: int | None = None

    def parameters(self) -> tuple[Parameter, ...]:
        return self.tensors

    def output_shape(self, shape: Shape) -> Shape:
        return self.outputs

    def flops(self, shape: Shape) -> int:
        if self.operations is not None:
            return self.operations
        return 2 * sum(math.prod(tensor.shape) for tensor in self.tensors)

    def forward(self, params: Arrays, x: np.ndarray) -> NoReturn:
        """There is none. Raises NotImplementedError."""
        raise NotImplementedError("a network with Opaque layers has no NumPy reference")
