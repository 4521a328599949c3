"""Layers that round what they pass on, as a device does that computes in a shorter number format.

The reference trains again with them. How far these trainings end from the exact one says how much a right program may
be off by rounding alone: harness/gate/timed_curve.py.
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


def rounded(array: np.ndarray, *, bits: int, dice: np.random.Generator | None = None) -> np.ndarray:
    """The array with that many significant bits in each number; the range of exponents is float64's.

    To the nearest, or with `dice` up or down at random, so that the expected value is the exact one (stochastic
    rounding: Croci et al. 2022, doi:10.1098/rsos.211631).
    """
    mantissa, exponent = np.frexp(array)  # 0.5 <= |mantissa| < 1
    scaled = np.ldexp(mantissa, bits)
    whole = np.rint(scaled) if dice is None else np.floor(scaled + dice.random(scaled.shape))
    return np.ldexp(whole, exponent - bits)


@dataclass(frozen=True)
class Rounding:
    """A layer whose parameters, outputs and input gradients are rounded. Its own sums are exact, and so are the
    gradients of its parameters."""

    layer: Layer
    bits: int
    dice: np.random.Generator | None = None

    def parameters(self) -> tuple[Parameter, ...]:
        return self.layer.parameters()

    def output_shape(self, shape: Shape) -> Shape:
        return self.layer.output_shape(shape)

    def flops(self, shape: Shape) -> int:
        return self.layer.flops(shape)

    def forward(self, params: Arrays, x: np.ndarray) -> tuple[np.ndarray, Pullback]:
        short = partial(rounded, bits=self.bits, dice=self.dice)
        y, back = self.layer.forward({p.name: short(params[p.name]) for p in self.parameters()}, short(x))

        def pullback(dy: np.ndarray) -> tuple[np.ndarray, Arrays]:
            dx, gradients = back(short(dy))
            return short(dx), gradients

        return short(y), pullback


def with_rounding(
    layers: Sequence[Layer], precision: Precision, *, dice: np.random.Generator | None = None, fewer_bits: int = 0
) -> tuple[Layer, ...]:
    """The same network, computed in a precision. Both paths of a residual block round as well.

    `dice`: rounds at random. `fewer_bits`: than the precision has.
    """
    bits = SIGNIFICANT_BITS[precision] - fewer_bits
    return mapped(layers, lambda layer: Rounding(layer, bits, dice))
