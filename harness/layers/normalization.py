"""Batch normalization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.layers.base import Parameter, Pullback, Shape
from harness.spec.arrays import Arrays


@dataclass(frozen=True)
class BatchNorm:
    """Normalizes each channel by the mean and the biased variance over samples and positions, then scales and shifts.

    Ioffe & Szegedy 2015, arXiv:1502.03167, algorithm 1. This is BatchNorm in training; its running statistics are in
    harness/layers/running_statistics.py.
    """

    name: str
    channels: int
    epsilon: float = 1e-5

    def parameters(self) -> tuple[Parameter, ...]:
        shape = (self.channels,)
        return (
            Parameter(f"{self.name}.weight", shape, 1, "ones"),
            Parameter(f"{self.name}.bias", shape, 1, "zeros"),
        )

    def output_shape(self, shape: Shape) -> Shape:
        if shape[-1] != self.channels:
            raise ValueError(f"{self.name}: input {shape}, expected {self.channels} channels in the last axis")
        return shape

    def flops(self, shape: Shape) -> int:
        return 0

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        axes = tuple(range(x.ndim - 1))
        count = x.size // x.shape[-1]
        normal = x - x.mean(axes)
        scale = 1 / np.sqrt((normal * normal).mean(axes) + self.epsilon)
        normal *= scale
        weight = params[f"{self.name}.weight"]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            dweight, dbias = (dy * normal).sum(axes), dy.sum(axes)
            dx = weight * scale * (dy - dbias / count - normal * (dweight / count))
            return dx, {f"{self.name}.weight": dweight, f"{self.name}.bias": dbias}

        return normal * weight + params[f"{self.name}.bias"], pullback
