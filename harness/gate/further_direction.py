"""In which direction the gradients of a further call move each tensor.

With BatchNorm in bf16, rounding changes the numbers of a right gradient by more than their size, so they cannot be
compared (further_update.DEEP_UPDATE). Their direction can, in networks that are not too deep: NumPy makes the same
updates with a network that rounds what its layers pass on, and only tensors whose direction this does not change are
judged.
"""

from __future__ import annotations

import math

import numpy as np

from harness.gate.distances import LEAST_SHARE, norm, worst_of
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
SIZE, SIZE_WITH_ROUNDING = 0.15, 0.5
"""How far the part of a movement may be off that lies along the right one: where numbers are compared, and where only
directions are. Of 89 right programs, those without BatchNorm were off by up to 0.02 in bf16; ResNet-50 tiny in bf16, of
which only directions are compared, by 0.14 to 0.20, and workers of local training by 0.33."""
STORED = 0.1
"""Up to which share of a tensor's movement what float32 rounds when it is stored does not matter."""


def judges(precision: Precision, *, deep: bool) -> bool:
    """Whether a call is judged by directions. `deep`: with BatchNorm."""
    return deep and precision in ("tf32", "bf16")


def compare(right: Arrays, found: Arrays, *, without: Arrays, rounded: Arrays | None) -> list[Check]:
    """The parameters `found` after a call. `right`: what they must be. `without`: if all gradients had been 0.
    `rounded`: by the network that rounds; None where rounding hardly changes them, and directions are not judged.

    No check if no tensor's movement is known.
    """
    directions, sizes = {}, {}
    for name, moved in _movements(right, without, rounded).items():
        own = found[name].astype(np.float64) - without[name]
        directions[name], sizes[name] = off(own, moved), size_off(own, moved)
    checks = []
    if directions and rounded is not None:
        error, worst = worst_of(directions)
        checks.append(Check(quantity="further direction", error=error, tolerance=DIRECTION, worst=worst))
    if sizes:
        error, worst = worst_of(sizes)
        checks.append(
            Check(
                quantity="further step size",
                error=error,
                tolerance=SIZE if rounded is None else SIZE_WITH_ROUNDING,
                worst=worst,
            )
        )
    return checks


def _movements(right: Arrays, without: Arrays, rounded: Arrays | None) -> Arrays:
    """What the gradients must move in each tensor that is judged."""
    every = {name: array.astype(np.float64) - without[name] for name, array in right.items()}
    least = LEAST_SHARE * max((norm(moved) for moved in every.values()), default=0.0)
    known = {}
    for name, moved in every.items():
        stored = float(np.finfo(np.float32).eps) / 2 * norm(right[name])
        if moved.size < LEAST or norm(moved) <= least or stored > STORED * norm(moved):
            continue
        if rounded is None or off(rounded[name] - without[name], moved) <= KNOWN:
            known[name] = moved
    return known


def size_off(found: np.ndarray, right: np.ndarray) -> float:
    """How far a movement's part along the right one is off, relative to it."""
    if not np.all(np.isfinite(found)):
        return math.inf
    return abs(float(found.ravel() @ right.ravel()) / norm(right) ** 2 - 1)


def off(found: np.ndarray, right: np.ndarray) -> float:
    """1 - the cosine between two movements; 1 if one has no direction, infinite if a number is not finite."""
    if not np.all(np.isfinite(found)):
        return math.inf
    sizes = norm(found) * norm(right)
    return 1 - float(found.ravel() @ right.ravel()) / sizes if sizes else 1.0
