"""Intervals that assume no distribution, and the standard deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A confidence interval: with this confidence, the true median lies in it."""

    low: float
    high: float
    confidence: float


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 for a single value, which has none."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def median_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """The narrowest interval from the k-th lowest to the k-th highest value that has at least `confidence`.

    With too few values, it is the interval from the lowest to the highest, with the confidence that this has. None for
    fewer than two values.

    Each of n values is below the median with probability 1/2. So the k-th lowest and the k-th highest enclose the
    median with probability 1 - 2 P(B < k), where B is binomial (n, 1/2) (Le Boudec 2010, Performance Evaluation of
    Computer and Communication Systems, theorem 2.1). Values may be infinite: a training that never reaches its target
    is.
    """
    ordered, count = sorted(values), len(values)
    if count < 2:
        return None
    best = 1
    while best + 1 <= count // 2 and _confidence(count, best + 1) >= confidence:
        best += 1
    return Interval(ordered[best - 1], ordered[count - best], _confidence(count, best))


def _confidence(count: int, k: int) -> float:
    return 1 - 2 * sum(math.comb(count, i) for i in range(k)) / 2**count
