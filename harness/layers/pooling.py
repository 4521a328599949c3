"""Global average pooling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.layers.base import Pullback, Shape, Stateless
from harness.spec.arrays import Arrays


@dataclass(frozen=True)
class GlobalAveragePool(Stateless):
    """(height, width, channel) to (channel,): the mean over all positions."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape[2:]

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        positions = x.shape[1] * x.shape[2]

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            return np.broadcast_to(dy[:, None, None] / positions, x.shape), {}

        return x.mean((1, 2)), pullback
