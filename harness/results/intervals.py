"""Intervals that assume nothing of how values are distributed, and how far values spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A confidence interval: the median that the values are drawn from lies in it with this confidence."""

    low: float
    high: float
    confidence: float


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 of a single value, which has none."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def median_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """The narrowest interval between two of the values, equally far from both ends, that has at least `confidence`;
    with too few values for it, from the lowest to the highest, with what confidence that has. None for less than two.

    Any of n values is below the median with probability 1/2, so the k-th lowest and the k-th highest enclose it with
    probability 1 - 2 P(B < k), B binomial (n, 1/2) (Le Boudec 2010, Performance Evaluation of Computer and
    Communication Systems, theorem 2.1). Values may be infinite: a training that never gets there counts as one.
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
