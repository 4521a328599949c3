"""One update of a training, computed again in NumPy from the weights around it.

The optimizer's own state is not read, because its names and layouts differ between frameworks and strategies. With SGD,
two successive steps show it:

        earlier step          checked step
    w0 --------------> w1 -------------------> w2        w0 - w1 = rate v1    gives v1,
                                                         v2 = momentum v1 + g gives w2 = w1 - rate v2
"""

from __future__ import annotations

import numpy as np

from harness.gate.distances import beyond_rounding, norm, worst_of
from harness.spec import Check, OptimizerSpec, Precision
from harness.spec.arrays import Arrays
from harness.spec.optimizers import rate, update

UPDATES: dict[Precision, float] = {"fp64": 1e-6, "fp32": 5e-2, "tf32": 0.5}
"""How far the weights after a step may be off, per tensor, relative to the gradient's part of the right update.
A tensor that stands still is off by 1, a rate that is half as fast again by 0.5.

In fp32, gradients of 8,000 steps of `mnist_cnn tiny` were off by up to 1.6e-3 (1e-6 in most): an activation whose sign
differs by rounding is a part of one sample's gradient. In bf16, right programs were off by 0.38 in 2 epochs and by 0.68
in 12, as gradients shrink: no tolerance would tell a right update from a wrong one. TF32 rounds eight times more finely
than bf16; it was not measured."""
DEEP_UPDATES: dict[Precision, float] = {"fp64": 1e-6, "fp32": 0.25}
"""The same with BatchNorm, which amplifies rounding. Right programs of `resnet50 tiny` were off by up to 2e-5 in fp32
and by 1.3 in bf16. A gradient of the whole ResNet-50 in float32 differs by up to 0.18 from float64 (docs/parity.md)."""


def compare_update(
    optimizer: OptimizerSpec,
    *,
    earlier: Arrays | None,
    before: Arrays,
    after: Arrays,
    gradients: Arrays,
    earlier_gradients: Arrays | None,
    made: int,
    tolerance: float,
    where: str,
) -> Check:
    """The weights after update `made` (from 0) of SGD, with those `before` it.

    `earlier`: the weights one more step before, needed for momentum, unless this is the first update;
    `earlier_gradients`: the gradients at them, needed for Nesterov's momentum.
    """
    now, past = rate(optimizer, made), rate(optimizer, made - 1) if made else 0.0
    exact = {name: array.astype(np.float64) for name, array in before.items()}
    state = {}
    if optimizer.momentum and made:
        assert earlier is not None
        state = {
            (name, "v"): velocity
            for name, velocity in _velocities(optimizer, earlier, exact, earlier_gradients, past).items()
        }
    right = update(optimizer, exact, gradients, state, step=made)
    fresh = {name: now * (array + optimizer.weight_decay * exact[name]) for name, array in gradients.items()}
    # Each of the weights was rounded when it was stored: two of them make the update, two the velocity.
    stored = 2 + (2 * optimizer.momentum * now / past if state else 0)
    moved = {name: norm(array) for name, array in fresh.items()}
    errors = beyond_rounding(after, right, moved=moved, roundings=stored)
    error, worst = worst_of(errors)
    return Check(quantity="step updates", error=error, tolerance=tolerance, worst=f"{worst}, {where}")


def _velocities(
    optimizer: OptimizerSpec, earlier: Arrays, before: Arrays, gradients: Arrays | None, past: float
) -> Arrays:
    """The velocity after the earlier step, from how far that step moved the weights at the rate `past`."""
    found: Arrays = {}
    for name, array in before.items():
        start = earlier[name].astype(np.float64)
        direction = (start - array) / past
        if optimizer.nesterov:  # direction = g + momentum v
            assert gradients is not None
            direction = (direction - gradients[name] - optimizer.weight_decay * start) / optimizer.momentum
        found[name] = direction
    return found
