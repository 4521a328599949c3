"""A linear layer, and the flattening of images in front of one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.layers.base import Parameter, Pullback, Shape, Stateless
from harness.spec.arrays import Arrays


@dataclass(frozen=True)
class Linear:
    """y = x W + b with W (in, out)."""

    name: str
    inputs: int
    outputs: int
    flattened: Shape = ()

    def parameters(self) -> tuple[Parameter, ...]:
        return (
            Parameter(f"{self.name}.weight", (self.inputs, self.outputs), self.inputs, flattened=self.flattened),
            Parameter(f"{self.name}.bias", (self.outputs,), self.inputs),
        )

    def output_shape(self, shape: Shape) -> Shape:
        if shape != (self.inputs,):
            raise ValueError(f"{self.name}: input {shape}, expected ({self.inputs},)")
        return (self.outputs,)

    def flops(self, shape: Shape) -> int:
        return 2 * self.inputs * self.outputs

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        weight = params[f"{self.name}.weight"]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            return dy @ weight.T, {f"{self.name}.weight": x.T @ dy, f"{self.name}.bias": dy.sum(0)}

        return x @ weight + params[f"{self.name}.bias"], pullback


@dataclass(frozen=True)
class Flatten(Stateless):
    """(height, width, channel) to one axis, in that order."""

    def output_shape(self, shape: Shape) -> Shape:
        return (int(np.prod(shape)),)

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        return x.reshape(len(x), -1), lambda dy: (dy.reshape(x.shape), {})
