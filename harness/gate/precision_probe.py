"""Does a program really compute in its nominal precision? Each framework computes two products, to be compared with
float64.

What a framework's switches for TF32 do differs from version to version, and a switch may have no effect. So after its
work, every worker computes a matrix product and a convolution in the way its programs did. In bf16, this means the same
layers in the same context, because these do the casts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.layers import Conv2D
from harness.spec import Precision
from harness.spec.arrays import Arrays

ROUGH = 1e-5
"""Separates float32 from TF32. Relative to the largest value, products of 256 numbers are off by about 1e-7 in float32
(24 bits), and by 3e-4 in TF32 (11 bits; NVIDIA A100 Tensor Core GPU Architecture, 2020)."""
COARSE = 1e-3  # separates TF32 from bfloat16 (8 bits), with errors of about 3e-3
FINE = 1e-12  # separates float64 from float32


def operands() -> Arrays:
    """float64: matrices "a" and "b", (256, 256); images "x", (2, 16, 16, 32); kernels "k", (3, 3, 32, 32), in HWIO."""
    rng = np.random.default_rng(0)
    shapes = {"a": (256, 256), "b": (256, 256), "x": (2, 16, 16, 32), "k": (3, 3, 32, 32)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def errors(product: np.ndarray, convolution: np.ndarray) -> dict[str, float]:
    """The errors of a b, and of the convolution of x with k (no padding, NHWC), relative to the largest value."""
    given = operands()
    kernels = {"c.weight": given["k"]}
    right = {
        "matrix product": (product, given["a"] @ given["b"]),
        "convolution": (convolution, Conv2D("c", 3, 32, 32, bias=False).forward(kernels, given["x"])[0]),
    }
    return {name: float(np.abs(found - value).max() / np.abs(value).max()) for name, (found, value) in right.items()}


def wrong(found: Mapping[str, float], precision: Precision) -> str:
    """The evidence that another precision was used, or ""."""
    for name, error in found.items():
        if precision == "fp32" and not error < ROUGH:
            return f"a {name} in fp32 is off by {error:.0e}, so it was computed in TF32 or less"
        if precision == "bf16" and not COARSE < error < 30 * COARSE:
            return f"a {name} in bf16 is off by {error:.0e}, so it was not computed in bfloat16"
        if precision == "tf32" and not ROUGH < error < COARSE:
            return f"a {name} in tf32 is off by {error:.0e}, so it was not computed in TF32"
        if precision == "fp64" and not error < FINE:
            return f"a {name} in fp64 is off by {error:.0e}, so it was computed in float32 or less"
    return ""
