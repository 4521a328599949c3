"""Does the timed program compute the training that was proved? Its first steps, at the timed batch and precision.

The parity phase proves the program in float64 and on small batches. Here the program that is timed is compared with the
golden reference: all losses of the curve that NumPy can afford, and the weights after them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from harness.gate.parity import relative_error
from harness.reference.loops import Golden
from harness.spec import Check, Precision, ToleranceSet
from harness.spec.arrays import Arrays

TOLERANCES: dict[Precision, tuple[float, float]] = {"fp64": (1e-7, 1e-6), "fp32": (1e-2, 5e-2)}
"""The largest error of losses and of parameters. Precisions without an entry are not judged: their noise on GPUs has
not been measured yet.

In fp32, right programs were measured to be off by up to 7e-5 of the curve's fall and 4e-3 of a tensor's movement
(mnist_cnn tiny, 20 steps, CPU devices). Nearly all of it comes from one activation whose sign, or whose place in a max
pool, differs by rounding. Without such an event the errors are 5e-6 and 1e-5, and on toy 5e-7 and 1e-4. A training that
never updates is off by 1."""

BF16_GRADIENTS = (5e-2, 0.2)
"""The same where gradients cross devices in bfloat16, as an option asked for: measured were 8e-4 and 2e-2."""

STILL = 0.01
"""A tensor that moves less than this share of the one that moves most is judged as if it moved so much."""

ROUNDING: dict[Precision, float] = {
    "fp64": 250 * float(np.finfo(np.float64).eps),
    "fp32": 250 * float(np.finfo(np.float32).eps),
}
"""Losses and weights are also judged as if they changed by this share of themselves: at a rate so small that rounding
moves the weights as far as training does, no error can be told from noise."""


def compare(
    golden: Golden,
    *,
    losses: Sequence[float],
    replicas: Iterable[Arrays],
    precision: Precision,
    tolerances: ToleranceSet = "exact",
) -> tuple[Check, ...]:
    """Compare one rank's curve with the golden one, and the weights of each of its replicas after it.

    Losses are judged by how far the curve falls, weights by how far they move: a training that stands still is wrong by
    all of that. Raises KeyError for a precision that is not judged.
    """
    of_losses, of_parameters = BF16_GRADIENTS if tolerances == "bf16_gradients" else TOLERANCES[precision]
    rounding = ROUNDING[precision]
    fall = float(np.max(golden.losses) - np.min(golden.losses))
    scale = max(fall, 4 * rounding * float(np.max(np.abs(golden.losses))))
    error = relative_error(np.array(losses), golden.losses, scale)
    checks = [Check(quantity="timed losses", error=error, tolerance=of_losses, worst="loss")]
    moved = {name: _norm(right - golden.initial[name]) for name, right in golden.params.items()}
    least = {name: max(STILL * max(moved.values()), rounding * _norm(right)) for name, right in golden.params.items()}
    for index, replica in enumerate(replicas):
        errors = {
            name: _distance(replica[name], right) / max(moved[name], least[name])
            for name, right in golden.params.items()
        }
        worst = max(errors, key=lambda name: errors[name])
        place = f"{worst} (replica {index})"
        checks.append(Check(quantity="timed parameters", error=errors[worst], tolerance=of_parameters, worst=place))
    return tuple(checks)


def _distance(found: np.ndarray, right: np.ndarray) -> float:
    """The norm of the difference; infinite if the shapes differ or a number is not finite."""
    if found.shape != right.shape or not np.all(np.isfinite(found)):
        return math.inf
    return _norm(found.astype(np.float64) - right)


def _norm(array: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.square(array))))
