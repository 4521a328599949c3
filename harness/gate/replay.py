"""Did a block of steps compute what the same steps compute one by one?

harness/worker/watched_block.py reads a program's state before and after a block, loads the state from before it again,
and makes the steps once more, waiting after each call. Where sums differ from run to run, the second replay says by how
much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np

from harness.gate.distances import distance, distance_of_all, norm, norm_of_all, worst_of
from harness.gate.timed_program import COUNTS
from harness.spec import Check
from harness.spec.arrays import Arrays

LEAST = 1e-3
"""How far each array of the state may be off, relative to its movement in the block, if two replays agree in every bit.
Then it was 0 in right programs: the same compiled program computes the same bits, however often it is waited for."""
UNLIKE = 0.1
"""The same for each parameter of a program whose replays do not agree in every bit, as on GPUs where sums are made in
any order. A flipped activation now and then makes most of the distance, so two replays may agree by chance to 1e-6
where a third is off by 1e-2. That was the most in mnist_cnn base in float32, in 180 pairs of replays of 80 steps with
gradients that were off by 1e-7 of their largest value. Optimizer state was off by up to 0.2, and is not judged
there."""
FACTOR = 5.0
"""The same, as a multiple of the distance between two replays."""
MOST = 0.3
"""Where more would be needed, directions are noise, and only the size of the whole movement is judged."""
SIZE = 2e-2
"""How far the size of the parameters' whole movement may be off. Measured were 7e-5 in the replays above, and 7e-4 in
bf16 on two H200s (mnist_cnn tiny and ResNet-50). A block in which one step of thirty does nothing moves 3% less."""
STILL = 1e-3
"""A tensor that moves less than this share of itself is judged as if it moved so much."""
HARDLY = 1e-4
"""The same for the size of the whole movement. Rounding moves float32 weights by some 1e-6 of themselves in a block."""


def replayed(before: Arrays, after: Arrays, replays: Sequence[Arrays], *, exact: bool = False) -> Check:
    """Compare the state after a block with that after the same steps one by one.

    A second replay says whether any two runs of this program are equal. `exact`: they must be. A program that keeps
    something besides its state makes two replays unlike as well.
    """
    error, worst = worst_of(_errors(before, after, replays[0]))
    if error <= LEAST or exact or len(replays) == 1 or _equal(*replays[:2]):
        return _check(error, LEAST, worst)
    checks = [_arrays(before, after, replays), _size(before, after, replays)]
    return max(checks, key=lambda check: check.error / check.tolerance)


def _arrays(before: Arrays, after: Arrays, replays: Sequence[Arrays]) -> Check:
    """The parameters, running statistics and counts, against the replay that is closest."""
    counts = {
        name for name, array in after.items() if array.dtype.kind not in "fV" or name.rpartition("/")[2] in COUNTS
    }
    model = {name for name in after if name.startswith(("model/", "running/"))}
    noise, _ = worst_of(_errors(before, _only(model, replays[0]), replays[1]))
    judged = _only(counts if FACTOR * noise > MOST else counts | model, after)
    error, worst = min(worst_of(_errors(before, judged, replay)) for replay in replays)
    return _check(error, min(max(UNLIKE, FACTOR * noise), MOST), worst)


def _size(before: Arrays, after: Arrays, replays: Sequence[Arrays]) -> Check:
    """The size of the parameters' whole movement, against the replay that is closest."""
    start, *ends = (_parameters(state) for state in (before, after, *replays))
    size, *others = (distance_of_all(end, start) for end in ends)
    least = HARDLY * norm_of_all(start)
    error = min(abs(size - other) / max(other, least) for other in others)
    return _check(error, SIZE, "size of the whole movement")


def _check(error: float, tolerance: float, worst: str) -> Check:
    return Check(quantity="replayed block", error=error, tolerance=tolerance, worst=worst)


def _equal(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())


def _only(names: Set[str], state: Arrays) -> Arrays:
    return {name: state[name] for name in names}


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
