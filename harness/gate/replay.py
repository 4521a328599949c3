"""Did a block of steps compute what the same steps compute one by one?

harness/worker/watched_block.py reads a program's state before and after a block, loads the first one again, and makes
the steps once more, waiting after each call. Where sums differ from run to run, the second replay says by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.gate.distances import distance, distance_of_all, norm, worst_of
from harness.spec import Check
from harness.spec.arrays import Arrays

LEAST = 1e-3
"""How far each tensor of the state may be off, relative to its movement in the block. In right programs on CPU devices
it was 0: the same compiled program computes the same bits, however often it is waited for."""
FACTOR = 5.0
"""The same, as a multiple of the distance between two replays."""
MOST = 0.3
"""Where more would be needed, the training amplifies rounding, and only the size of the parameters' whole movement is
judged, to this share of itself. A block in which every other step does nothing moves half as far."""
STILL = 1e-3
"""A tensor that moves less than this share of itself is judged as if it moved so much."""


def replayed(before: Arrays, after: Arrays, replays: Sequence[Arrays]) -> Check:
    """Compare the state after a block with that after the same steps one by one. A second replay measures noise."""
    error, worst = worst_of(_errors(before, after, replays[0]))
    if error <= LEAST or len(replays) == 1:
        return Check(quantity="replayed block", error=error, tolerance=LEAST, worst=worst)
    noise, _ = worst_of(_errors(before, replays[0], replays[1]))
    if FACTOR * noise <= MOST:
        return Check(quantity="replayed block", error=error, tolerance=max(LEAST, FACTOR * noise), worst=worst)
    start, *ends = (_parameters(state) for state in (before, after, *replays))
    size, *others = (distance_of_all(end, start) for end in ends)
    off = min(abs(size / other - 1) if other else float(size != other) for other in others)
    return Check(quantity="replayed block", error=off, tolerance=MOST, worst="size of the whole movement")


def _errors(before: Arrays, after: Arrays, again: Arrays) -> Mapping[str, float]:
    return {name: _error(before.get(name), array, again[name]) for name, array in after.items()}


def _parameters(state: Arrays) -> Arrays:
    return {name: array for name, array in state.items() if name.startswith("model/")}


def _error(before: np.ndarray | None, after: np.ndarray, again: np.ndarray) -> float:
    """Counts and the like must be equal. An array that did not exist before began at zero."""
    if np.array_equal(after, again):
        return 0.0
    if after.dtype.kind not in "fV":
        return float("inf")
    start = np.zeros_like(after) if before is None else before
    return distance(again, after) / max(distance(start, after), STILL * norm(after), float(np.finfo(np.float64).tiny))
