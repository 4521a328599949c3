"""Gradients that cuDNN computes by Winograd's algorithm, in float32.

cuDNN may choose it for a convolution on a GPU, by its own rules or because it was the fastest when it was tried. All
three frameworks leave that to cuDNN, and none has a setting against it. It rounds a kernel's gradient about as much as
TF32 does, although all its numbers are float32 (reports/probes/float32).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.spec import Check, Precision, Quantity

UPDATE = 5e-3
"""How far such a kernel may be off after an update, relative to what the gradient changed in it. On two H200s,
gradients in the network were off by up to 2.4e-4 (mnist_cnn base, batches of 64, 19 cells of three frameworks). By
themselves, on random numbers, they were off by up to 6e-4 with 16 images and 8e-4 with 256. Adam
makes 2.4e-3 of that."""
LATER_UPDATE = 5e-4
"""The same for all other parameters after several updates: later ones begin at other weights. In NumPy, where gradients
of kernels were given errors of 2.4e-4, others were off by up to 6e-5 after four updates (mnist_cnn tiny, SGD and Adam).
In mnist_cnn base, they were off by less than 1e-6 with SGD. With Adam and moments of 60 steps, they were off by up to
1.4e-4 in one of four calls, and by less than 2e-5 in the others. With Adam and moments of two steps, they were off by
up to 1.9e-3: a program that is right could be refused there. Rounding to bfloat16 changes gradients by 1.7e-3."""
WIDTH = 5
"""Of the kernels for which that was measured. The gradients of 3 x 3 were off by up to 1.2e-5, also by Winograd's
algorithm, which has smaller tiles there."""


def may_compute(platform: str, precision: Precision) -> bool:
    """Whether gradients may be computed in that way."""
    return platform == "gpu" and precision == "fp32"


def tolerances(params: Mapping[str, np.ndarray], *, updates: int) -> dict[str, float]:
    """Those of parameters, here by name, after so many updates, if they may be wider: of kernels (H, W, in, out) of
    that width, and after several updates of all that are trained together with one."""
    kernels = {name: UPDATE for name, array in params.items() if array.ndim == 4 and array.shape[0] == WIDTH}
    others = dict.fromkeys(params, LATER_UPDATE) if kernels and updates > 1 else {}
    return others | kernels


def worst(quantity: Quantity, errors: Mapping[str, float], tolerance: float, wider: Mapping[str, float]) -> Check:
    """The worst of these errors, by tensor. `wider`: the tolerances of those that have another one, if it is larger."""
    nothing = Check(quantity=quantity, error=0.0, tolerance=tolerance, worst="")
    checks = (
        Check(quantity=quantity, error=error, tolerance=max(tolerance, wider.get(name, 0.0)), worst=name)
        for name, error in errors.items()
    )
    return max(checks, key=lambda check: check.severity, default=nothing)
