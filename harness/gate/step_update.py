"""One update of a training, computed again in NumPy from the weights around it.

The optimizer's own state is not read with SGD, because two successive steps show it:

        earlier step          checked step
    w0 --------------> w1 -------------------> w2        w0 - w1 = rate v1    gives v1,
                                                         v2 = momentum v1 + g gives w2 = w1 - rate v2

The moments of Adam, AdamW and Adagrad do not show in the weights, so they are taken from the program's state before the
step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from harness.contract import Moments
from harness.gate import further_update
from harness.gate.distances import beyond_rounding, distance, norm, worst_of
from harness.spec import Check, OptimizerSpec, Precision
from harness.spec.arrays import Arrays
from harness.spec.optimizers import rate, update

UPDATES: dict[Precision, float] = {"fp64": 1e-6, "fp32": 5e-2, "tf32": 0.5}
"""How far the weights after a step may be off, per tensor, relative to the gradient's part of the right update.
A tensor that stands still is off by 1, a rate that is half as fast again by 0.5.

In fp32, gradients of 8,000 steps of `mnist_cnn tiny` were off by up to 1.6e-3 (1e-6 in most): an activation whose sign
differs by rounding is a part of one sample's gradient. In bf16, right programs were off by 0.38 in 2 epochs and by 0.68
in 12, as gradients shrink: no tolerance would tell a right update from a wrong one. TF32 rounds eight times more finely
than bf16; it was not measured. With Adam, AdamW and Adagrad, what rounding of the weights cannot explain was 0 in all
cells of `classifier` and `mnist_cnn tiny`."""
DEEP_UPDATES: dict[Precision, float] = {"fp64": 1e-6, "fp32": 0.25}
"""The same with BatchNorm, which amplifies rounding. In fp32, 360 updates of `resnet50 tiny` in PyTorch were off by up
to 4e-2 with SGD and 7e-2 with Adam and AdamW (most of them by less than 1e-5), and one of TensorFlow's by 9.4e-2. In
bf16, right programs were off by 1.3. A gradient of the whole ResNet-50 in float32 differs by up to 0.18 from float64
(docs/parity.md)."""
DECAY = 0.3
"""How far the weight decay in an update may be off, relative to itself. Right programs were off by up to 1.5e-2 in fp32
(a decay of 1e-4 on `classifier`; else up to 3e-3), and by 7e-2 in bf16: some 40 cells of 11
strategies of three frameworks, with SGD and decays of 1e-4 and 5e-4 or AdamW and 0.1. In bf16, rounding hid the decay
of SGD, and one of 0.01 in AdamW, in all cells."""


@dataclass(frozen=True, kw_only=True)
class Right:
    """What an update must do."""

    optimizer: OptimizerSpec
    made: int  # the updates before it
    before: Arrays
    after: Arrays
    moved: Mapping[str, float]  # by the gradient's part of the update
    roundings: float  # of stored numbers, in what is compared


def by_two_steps(
    optimizer: OptimizerSpec,
    *,
    earlier: Arrays | None,
    before: Arrays,
    gradients: Arrays,
    earlier_gradients: Arrays | None,
    made: int,
) -> Right:
    """Update `made` (from 0) of SGD, from the weights `before` it.

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
    fresh = {name: now * (array + optimizer.weight_decay * exact[name]) for name, array in gradients.items()}
    # Each of the weights was rounded when it was stored: two of them make the update, two the velocity.
    stored = 2 + (2 * optimizer.momentum * now / past if state else 0)
    after = update(optimizer, exact, gradients, state, step=made)
    moved = {name: norm(array) for name, array in fresh.items()}
    return Right(optimizer=optimizer, made=made, before=exact, after=after, moved=moved, roundings=stored)


def by_moments(optimizer: OptimizerSpec, *, before: Arrays, moments: Moments, gradients: Arrays, made: int) -> Right:
    """Update `made` (from 0) of any rule, from the weights and the moments before it."""
    exact = {name: array.astype(np.float64) for name, array in before.items()}
    after = update(optimizer, exact, gradients, dict(moments), step=made)
    without, _ = further_update.if_gradients_were_0(optimizer, exact, moments, range(made, made + 1))
    moved = {name: distance(array, without[name]) for name, array in after.items()}
    return Right(optimizer=optimizer, made=made, before=exact, after=after, moved=moved, roundings=2)


def compare_update(right: Right, after: Arrays, *, tolerance: float, where: str) -> Check:
    """The weights after the update."""
    errors = beyond_rounding(after, right.after, moved=right.moved, roundings=right.roundings)
    error, worst = worst_of(errors)
    return Check(quantity="step updates", error=error, tolerance=tolerance, worst=f"{worst}, {where}")


def compare_decay(right: Right, after: Arrays, *, where: str) -> Check | None:
    """The weight decay in the update. None where it cannot be seen (further_update.decay_along)."""
    now = rate(right.optimizer, right.made)
    found = further_update.decay_along(right.optimizer, now, right.before, right.after, after)
    return found and replace(found, quantity="step weight decay", tolerance=DECAY, worst=where)


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
