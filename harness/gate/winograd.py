"""Gradients that cuDNN computes by Winograd's algorithm, in float32.

cuDNN may choose it for a convolution on a GPU, by its own rules or because it was the fastest when it was tried. All
three frameworks leave that to cuDNN, and none has a setting against it. It rounds a kernel's gradient about as much as
TF32 does, although all its numbers are float32 (reports/probes/float32).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from harness.gate.distances import worst_of
from harness.spec import Check, Precision, Quantity

UPDATE = 5e-3
"""How far such a kernel may be off after an update, relative to what the gradient changed in it. On two H200s,
gradients in the network were off by up to 2.4e-4 (mnist_cnn base, batches of 64, 19 cells of three frameworks). By
themselves, on random numbers, they were off by up to 6e-4 with 16 images and 8e-4 with 256."""
WIDTH = 5
"""Of the kernels for which that was measured. The gradients of 3 x 3 were off by up to 1.2e-5, also by Winograd's
algorithm, which has smaller tiles there."""


def may_compute(platform: str, precision: Precision) -> bool:
    """Whether gradients may be computed in that way."""
    return platform == "gpu" and precision == "fp32"


def kernels(params: Mapping[str, np.ndarray]) -> frozenset[str]:
    """The names of the parameters, here by name, whose gradients may be: kernels (H, W, in, out) of that width."""
    return frozenset(name for name, array in params.items() if array.ndim == 4 and array.shape[0] == WIDTH)


def worst(quantity: Quantity, errors: Mapping[str, float], tolerance: float, by_winograd: Collection[str]) -> Check:
    """The worst of these errors, by tensor. Those of `by_winograd` have the larger tolerance."""
    checks = []
    for inexact, allowed in ((False, tolerance), (True, max(tolerance, UPDATE))):
        error, name = worst_of({name: error for name, error in errors.items() if (name in by_winograd) == inexact})
        checks.append(Check(quantity=quantity, error=error, tolerance=allowed, worst=name))
    return max(checks, key=lambda check: check.severity)
