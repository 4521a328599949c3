"""In which direction the gradients of a further call move each tensor.

With BatchNorm in bf16, rounding changes the numbers of a right gradient by more than their size, so they cannot be
compared (further_update.DEEP_UPDATE). Their direction can, in networks that are not too deep: NumPy makes the same
updates with a network that rounds what its layers pass on, and only tensors whose direction this does not change are
judged.
"""

from __future__ import annotations

import math

import numpy as np

from harness.gate.distances import norm, worst_of
from harness.spec import Check, Precision
from harness.spec.arrays import Arrays

DIRECTION = 0.5
"""How far the direction may be off: 1 - cosine. Among the tensors that are judged, right programs were off by up to
0.18: 40 of ResNet-50 tiny in bf16, in all three frameworks and most strategies, in batches of 8, 12 and 32, with SGD
and Adam, on CPU devices. TF32 rounds eight times more finely and was not measured. Gradients with their numbers in
another order are off by 0.7 to 1.3."""
KNOWN = 0.25
"""How far the reference that rounds may be off in a tensor that is judged. With BatchNorm, a deeper network amplifies
rounding until its gradients have another direction: those of ResNet-50 at 224 x 224 are off by 0.9
(reports/probes/bf16_noise)."""
LEAST = 16
"""The fewest numbers of a tensor that is judged. Of fewer, right ones were off by up to 0.9."""
STORED = 0.1
"""Up to which share of a tensor's movement what float32 rounds when it is stored does not matter."""


def judges(precision: Precision, *, deep: bool, steps: int) -> bool:
    """Whether a call of so many steps is judged by directions. `deep`: with BatchNorm."""
    return deep and steps == 1 and precision in ("tf32", "bf16")


def compare(right: Arrays, rounded: Arrays, found: Arrays, *, without: Arrays) -> Check | None:
    """The parameters `found` after a call. `right`: what they must be. `rounded`: by the network that rounds.
    `without`: if all gradients had been 0. None if no tensor's direction is known."""
    errors = {}
    for name, array in right.items():
        moved = array.astype(np.float64) - without[name]
        stored = float(np.finfo(np.float32).eps) / 2 * norm(array)
        if array.size < LEAST or stored > STORED * norm(moved):
            continue
        if off(rounded[name] - without[name], moved) <= KNOWN:
            errors[name] = off(found[name].astype(np.float64) - without[name], moved)
    if not errors:
        return None
    error, worst = worst_of(errors)
    return Check(quantity="further direction", error=error, tolerance=DIRECTION, worst=worst)


def off(found: np.ndarray, right: np.ndarray) -> float:
    """1 - the cosine between two movements; 1 if one has no direction, infinite if a number is not finite."""
    if not np.all(np.isfinite(found)):
        return math.inf
    sizes = norm(found) * norm(right)
    return 1 - float(found.ravel() @ right.ravel()) / sizes if sizes else 1.0
