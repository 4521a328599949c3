"""The parity gate: does a program compute the golden reference's training? Judged before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from harness.reference.loops import Golden
from harness.spec import Check, Parity, Quantity, ToleranceSet
from harness.spec.arrays import Arrays

EXACT: dict[Quantity, float] = {"losses": 1e-11, "gradients": 1e-10, "parameters": 1e-9}
"""Largest error that passes, by quantity, relative as `relative_error` says. Correct programs of small networks stay
below 1e-13 (the noise of float64 sums in another order; docs/parity.md has the measured values); the mildest planted
fault in the tests, a schedule's count that passes through float32, shows as 5e-9."""

TOLERANCES: dict[ToleranceSet, dict[Quantity, float]] = {
    "exact": EXACT,
    "bf16_gradients": {"losses": 1e-3, "gradients": 2e-2, "parameters": 4e-2},
}
"""The largest error that each quantity may have. "bf16_gradients" is for gradients that cross devices in bfloat16: each
is rounded to 8 bits before they are added, by at most 2^-9 of itself, and so is each sum."""

NOISE_FACTOR = 100
"""A deep network amplifies rounding: five steps of ResNet-50 turn 1e-16 into 1e-8 in some weights. How much it does is
measured on the reference itself, and so many times that passes, where it is more than the tolerance. Measured: programs
of all three frameworks are up to about ten times as far off as the reference with its weights rounded once more."""

FLOOR = 1e-6
"""A tensor whose own scale is less than this part of the largest tensor's is judged on that part instead: the gradient
of a weight that cannot matter is rounding noise, and noise over noise is not an error."""


MOST_ALLOWED = 1e-6
"""No noise of the reference raises a tolerance beyond this: a check that anything passes proves nothing. A training so
chaotic that the reference cannot hold itself to it fails the gate, and must be judged at a gentler setting."""


def make_reference(
    train: Callable[[Arrays], Golden], params: Arrays, *, both: Callable[..., Iterable[Golden]] = map
) -> Golden:
    """The golden run from `params`, with its sensitivity to rounding: that of a second run, with initial weights off by
    one rounding. `train` is one of golden's loops with all else filled in; `both` is what calls it for the two, one
    after another or at the same time."""
    rng = np.random.default_rng(0)
    epsilon = np.finfo(np.float64).eps
    rounded = {name: array * (1 + epsilon * rng.uniform(-1, 1, array.shape)) for name, array in params.items()}
    reference, other = both(train, (params, rounded))
    if not np.all(np.isfinite(reference.losses)):
        return reference
    # parameters are judged by how they moved from where each run began
    moved = {name: params[name] + (other.params[name] - rounded[name]) for name in params}
    found = compare(reference, losses=other.losses, gradients=other.gradients, replicas=[moved], batch=0)
    noise = {check.quantity: check.error for check in found.checks}
    # A loss is one number, and one probe can leave it where it was by accident. A training that is off by some part of
    # its movement is off by about that part of what its loss has changed.
    losses = reference.losses
    change = (np.max(losses) - np.min(losses)) / np.max(np.abs(losses))
    return replace(reference, noise=noise | {"losses": max(noise["losses"], noise["parameters"] * float(change))})


def compare(
    golden: Golden,
    *,
    losses: Iterable[float],
    gradients: Arrays | None,
    replicas: Iterable[Arrays],
    batch: int,
    groups: int = 1,
    tolerances: ToleranceSet = "exact",
) -> Parity:
    """Hold one rank's results against the golden reference.

    `gradients`: of step 0, None on ranks that do not hold them. `replicas`: parameters after all steps, one mapping per
    copy that the rank holds; each must be right. Parameters are judged by how they moved, so that a small learning rate
    hides nothing.
    """
    allowed: dict[Quantity, float] = {
        name: max(limit, min(MOST_ALLOWED, NOISE_FACTOR * golden.noise.get(name, 0.0)))
        for name, limit in TOLERANCES[tolerances].items()
    }
    checks = [_check("losses", allowed, {"loss": np.array(list(losses))}, {"loss": golden.losses})]
    if gradients is not None:
        checks.append(_check("gradients", allowed, gradients, golden.gradients))
    scales = {name: golden.params[name] - golden.initial[name] for name in golden.params}
    for index, replica in enumerate(replicas):
        check = _check("parameters", allowed, replica, golden.params, scales)
        checks.append(
            Check(
                quantity=check.quantity,
                error=check.error,
                tolerance=check.tolerance,
                worst=f"{check.worst} (replica {index})",
            )
        )
    return Parity(steps=len(golden.losses), batch=batch, groups=groups, checks=tuple(checks), tolerances=tolerances)


def merge(ranks: Iterable[Parity]) -> Parity:
    """One result for all ranks: the worst check of each quantity. A quantity that no rank could show has failed."""
    ranks = list(ranks)
    checks = []
    first = ranks[0]
    for quantity, tolerance in TOLERANCES[first.tolerances].items():
        found = [check for rank in ranks for check in rank.checks if check.quantity == quantity]
        missing = Check(quantity=quantity, error=math.inf, tolerance=tolerance, worst="no rank reported it")
        checks.append(max(found, key=lambda check: check.error, default=missing))
    return replace(first, checks=tuple(checks))


def relative_error(found: np.ndarray, expected: np.ndarray, scale: float) -> float:
    """max |found - expected| / scale; infinite if anything is not finite or the shapes differ."""
    if found.shape != expected.shape or not np.all(np.isfinite(found)):
        return math.inf
    if not expected.size:
        return 0.0
    return float(np.max(np.abs(found - expected)) / scale)


def _check(
    quantity: Quantity,
    allowed: dict[Quantity, float],
    found: Arrays,
    expected: Arrays,
    scales: Arrays | None = None,
) -> Check:
    tolerance = allowed[quantity]
    if found.keys() != expected.keys():
        names = ", ".join(sorted(found.keys() ^ expected.keys()))
        return Check(quantity=quantity, error=math.inf, tolerance=tolerance, worst=f"missing or unknown: {names}")
    own = {name: float(np.max(np.abs(array), initial=0.0)) for name, array in (scales or expected).items()}
    floor = max(FLOOR * max(own.values()), np.finfo(np.float64).tiny)
    errors = {name: relative_error(found[name], expected[name], max(own[name], floor)) for name in expected}
    worst = max(errors, key=lambda name: errors[name])
    return Check(quantity=quantity, error=errors[worst], tolerance=tolerance, worst=worst)
