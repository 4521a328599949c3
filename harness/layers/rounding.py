"""Layers that round what they pass on, as a device does that computes in a shorter number format.

The reference trains a second time with them. How far that training ends from the first says how much a right program
may be off by rounding alone: harness/gate/timed_curve.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.layers.base import Layer, Parameter, Pullback, Shape
from harness.layers.chains import mapped
from harness.spec import Precision
from harness.spec.arrays import Arrays

SIGNIFICANT_BITS: dict[Precision, int] = {"fp64": 53, "fp32": 24, "tf32": 11, "bf16": 8}
"""The leading bit included. tf32: NVIDIA A100 Tensor Core GPU Architecture (2020); the others: IEEE 754, and bfloat16's
seven stored bits."""


def rounded(array: np.ndarray, *, bits: int) -> np.ndarray:
    """The array with that many significant bits in each number, to the nearest; the range of exponents is float64's."""
    mantissa, exponent = np.frexp(array)  # 0.5 <= |mantissa| < 1
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


@dataclass(frozen=True)
class Rounding:
    """A layer whose parameters, outputs and input gradients are rounded. Its own sums are exact, and so are the
    gradients of its parameters."""

    layer: Layer
    bits: int

    def parameters(self) -> tuple[Parameter, ...]:
        return self.layer.parameters()

    def output_shape(self, shape: Shape) -> Shape:
        return self.layer.output_shape(shape)

    def flops(self, shape: Shape) -> int:
        return self.layer.flops(shape)

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        short = partial(rounded, bits=self.bits)
        y, back = self.layer.forward({p.name: short(params[p.name]) for p in self.parameters()}, short(x))

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            dx, gradients = back(short(dy))
            return short(dx), gradients

        return short(y), pullback


def with_rounding(layers: Sequence[Layer], precision: Precision) -> tuple[Layer, ...]:
    """The same network, computed in a precision. Both paths of a residual block round as well."""
    return mapped(layers, lambda layer: Rounding(layer, SIGNIFICANT_BITS[precision]))
