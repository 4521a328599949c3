"""Activations: ReLU and log-softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.layers.base import Pullback, Stateless
from harness.spec.arrays import Arrays


@dataclass(frozen=True)
class ReLU(Stateless):
    """max(x, 0)."""

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        y = np.maximum(x, 0)
        return y, lambda dy: (dy * (y > 0), {})  # keeps y, as the next layer does anyway, and lets go of x


@dataclass(frozen=True)
class LogSoftmax(Stateless):
    """log softmax over the last axis."""

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        y = log_softmax(x)
        return y, lambda dy: (dy - np.exp(y) * dy.sum(-1, keepdims=True), {})


def log_softmax(x: np.ndarray) -> np.ndarray:
    """log softmax over the last axis, shifted by the maximum so that exp cannot overflow."""
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
