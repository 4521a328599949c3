"""Is a precision what it is called? Each framework computes the same products, and they are held against float64.

What a framework's switches for TF32 do differs from version to version, and a switch that is set is not yet one that
works. So every worker computes a matrix product and a convolution after its work, as its programs have computed them:
in bf16 by the layers and in the context that cast for them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.layers import Conv2D
from harness.spec import Precision
from harness.spec.arrays import Arrays

ROUGH = 1e-5
"""Between float32 and TF32: relative to the largest value, products of 256 numbers are off by about 1e-7 in float32 (24
bits) and by 3e-4 in TF32 (11 bits; NVIDIA A100 Tensor Core GPU Architecture, 2020)."""
COARSE = 1e-3  # between TF32 and bfloat16 (8 bits), in which they are off by about 3e-3
FINE = 1e-12  # between float64 and float32


def operands() -> Arrays:
    """float64: matrices "a" and "b", (256, 256); images "x", (2, 16, 16, 32); kernels "k", (3, 3, 32, 32), in HWIO."""
    rng = np.random.default_rng(0)
    shapes = {"a": (256, 256), "b": (256, 256), "x": (2, 16, 16, 32), "k": (3, 3, 32, 32)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def errors(product: np.ndarray, convolution: np.ndarray) -> dict[str, float]:
    """How far a b and the convolution of x with k (without padding, NHWC) are off, relative to the largest value."""
    given = operands()
    kernels = {"c.weight": given["k"]}
    right = {
        "matrix product": (product, given["a"] @ given["b"]),
        "convolution": (convolution, Conv2D("c", 3, 32, 32, bias=False).forward(kernels, given["x"])[0]),
    }
    return {name: float(np.abs(found - value).max() / np.abs(value).max()) for name, (found, value) in right.items()}


def wrong(found: Mapping[str, float], precision: Precision) -> str:
    """What shows that another precision was at work, or ""."""
    for name, error in found.items():
        if precision == "fp32" and not error < ROUGH:
            return f"a {name} in fp32 is off by {error:.0e}: it was computed in TF32 or less"
        if precision == "bf16" and not COARSE < error < 30 * COARSE:
            return f"a {name} in bf16 is off by {error:.0e}: it was not computed in bfloat16"
        if precision == "tf32" and not ROUGH < error < COARSE:
            return f"a {name} in tf32 is off by {error:.0e}: it was not computed in TF32"
        if precision == "fp64" and not error < FINE:
            return f"a {name} in fp64 is off by {error:.0e}: it was computed in float32 or less"
    return ""
