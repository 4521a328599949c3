"""Confidence intervals of a mean, of a geometric mean and of a median, and the standard deviation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95
FEWEST = 3
"""So many values have an interval that is reported. Of two, Student's t reaches 12.7 standard errors to each side: the
interval spans decades if they differ, and is narrower than anybody would believe if they happen to agree."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval: with this confidence, the true value lies in it."""

    low: float
    high: float
    confidence: float


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 for a single value, which has none."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def t_quantile(degrees: float, *, confidence: float = CONFIDENCE) -> float:
    """How many standard errors a two-sided interval reaches in each direction, by Student's t distribution."""
    return float(stdtrit(degrees, (1 + confidence) / 2))


def mean_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
    """Student's t interval of the mean. None for fewer than FEWEST values."""
    if len(values) < FEWEST:
        return None
    mean = statistics.fmean(values)
    half = t_quantile(len(values) - 1, confidence=confidence) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half, confidence)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values. Raises ValueError for others, and statistics.StatisticsError for none."""
    return math.exp(statistics.fmean(map(math.log, values)))


def geometric_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
    """The t interval of the mean of the logarithms, as an interval of the geometric mean. None for fewer than FEWEST
    values."""
    found = mean_interval([math.log(value) for value in values], confidence=confidence)
    return found and exponential(found)


def exponential(found: Interval) -> Interval:
    """The interval of a value from that of its logarithm."""
    return Interval(_exp(found.low), _exp(found.high), found.confidence)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)  # two launches that differ much have intervals without an end


def scaled(found: Interval | None, factor: float) -> Interval | None:
    """The interval of a value in another unit."""
    return found and Interval(factor * found.low, factor * found.high, found.confidence)


def median_interval(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval | None:
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
