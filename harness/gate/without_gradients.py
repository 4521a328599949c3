"""What a call of the timed program shows without NumPy's gradients, which large networks are too expensive for.

BatchNorm makes it possible. It divides out the size of the kernels before it, so their gradients are orthogonal to
them: along the kernels, a step of SGD has velocity and weight decay alone. And two calls that begin with other running
statistics, but with the same weights and batches, differ in what is kept of these statistics alone.
"""

from __future__ import annotations

import math

import numpy as np

from harness.contract import Moments
from harness.gate import further_update
from harness.gate.distances import norm, worst_of
from harness.layers import normalized_kernels
from harness.layers.running_statistics import MOMENTUM
from harness.spec import Check, OptimizerSpec, Precision, optimizers
from harness.spec.arrays import Arrays
from harness.workloads import Workload

ROUNDED: dict[Precision, float] = {"fp64": 1e-9, "fp32": 2e-3, "tf32": 1e-2, "bf16": 1e-2}
"""The error that rounding makes along the kernels, in that of an error as large as the step and of random direction.
Right programs had up to 2e-3 in fp32 and 1e-2 in bf16 (ResNet-50 tiny, six cells of three frameworks, decays of 1e-4
and 1e-2). TF32 was not measured: it rounds more finely than bf16."""
KEPT: dict[Precision, float] = {"fp64": 1e-9, "fp32": 1e-2, "tf32": 1e-2, "bf16": 1e-2}
"""By which share of itself that part of the running statistics may be off that a call keeps. Right programs were off by
up to 3e-7 in fp32 and in bf16 (ResNet-50 tiny, 26 cells)."""


def shows_decay(workload: Workload, optimizer: OptimizerSpec, *, steps: int) -> bool:
    """Whether a call of so many steps can show the weight decay: one step of SGD, with kernels before a BatchNorm."""
    return steps == 1 and optimizer.name == "sgd" and optimizer.weight_decay > 0 and workload.normalizes


def decay(
    workload: Workload,
    optimizer: OptimizerSpec,
    *,
    params: Arrays,
    moments: Moments,
    found: Arrays,
    made: int,
    precision: Precision,
) -> Check | None:
    """Does a step after `made` others decay the kernels before a BatchNorm? `params`, `moments`: before the step.
    `found`: the state after it. None where it cannot be seen, also because rounding hides it.
    """
    names = normalized_kernels(workload.layers)
    if not names or not shows_decay(workload, optimizer, steps=1):
        return None
    before = {name: params[name] for name in names}
    without, _ = further_update.if_gradients_were_0(optimizer, before, moments, range(made, made + 1))
    after = {name: found[f"model/{name}"] for name in names}
    rate = optimizers.rate(optimizer, made)
    return further_update.decay_along(optimizer, rate, before, without, after, rounded=ROUNDED[precision])


def kept_statistics(
    starts: tuple[Arrays, Arrays], found: tuple[Arrays, Arrays], *, steps: int, precision: Precision
) -> Check:
    """Do two calls of so many steps, from running statistics that differ, keep the right part of the difference?

    `starts` and `found`: states before and after each call. Statistics keep 1 - MOMENTUM of themselves in a step.
    """
    errors = {}
    for name in (name for name in starts[0] if name.startswith("running/")):
        right = (1 - MOMENTUM) ** steps * (starts[1][name] - starts[0][name])
        kept = found[1][name].astype(np.float64) - found[0][name]
        errors[name] = norm(kept - right) / norm(right) if np.all(np.isfinite(kept)) else math.inf
    error, worst = worst_of(errors)
    return Check(quantity="kept statistics", error=error, tolerance=KEPT[precision], worst=worst)
