"""Ratios of two cells' measurements, on the logarithmic scale.

Launches of two cells in one round ran on the same machine, shortly after each other. What changes from round to round
(the machine, its temperature, its other users) changes both, and cancels in their ratio. So ratios are formed within
rounds, and the unit of replication is the pair (Kalibera & Jones 2013, ISMM; Hoefler & Belli 2015, SC15, rule 5).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from harness.statistics.intervals import CONFIDENCE, FEWEST, Interval, exponential, t_quantile

ROUNDING = 1e-12  # equal ratios of floating-point numbers differ by less


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as large one quantity is as another.

    `deviation`: the standard deviation of one pair's logarithm; for unpaired launches, of one launch on each side.
    `degrees`: of freedom; 0: a single pair, which has no interval.
    """

    value: float
    deviation: float
    standard_error: float  # of the logarithm
    degrees: float
    pairs: int  # 0: unpaired

    @property
    def interval(self) -> Interval | None:
        """The 95% interval as it is reported; None with two pairs or fewer, or unpaired launches that are as few."""
        return self.tested if self.degrees >= FEWEST - 1 else None

    @property
    def tested(self) -> Interval | None:
        """The 95% interval that decides what is shown: two pairs that are far apart have an order. None with a single
        pair."""
        if not self.degrees:
            return None
        half = t_quantile(self.degrees) * self.standard_error
        return exponential(Interval(self.log - half, self.log + half, CONFIDENCE))

    @property
    def log(self) -> float:
        """The natural logarithm of the value."""
        return math.log(self.value)

    @property
    def p(self) -> float:
        """How probable a ratio at least as far from 1 is, if it is 1 in truth; 1 with a single pair."""
        if not self.degrees:
            return 1.0
        if not self.standard_error:
            return 1.0 if self.log == 0 else 0.0
        return float(2 * stdtr(self.degrees, -abs(self.log) / self.standard_error))

    @property
    def inverse(self) -> Ratio:
        """The same comparison from the other side."""
        return Ratio(
            value=1 / self.value,
            deviation=self.deviation,
            standard_error=self.standard_error,
            degrees=self.degrees,
            pairs=self.pairs,
        )


def paired(ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> Ratio | None:
    """The geometric mean of the ratios of values with the same key. None without a key in common."""
    logs = [math.log(value / theirs[key]) for key, value in ours.items() if key in theirs]
    if not logs:
        return None
    spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
    if spread < ROUNDING:
        spread = 0.0
    return Ratio(
        value=math.exp(statistics.fmean(logs)),
        deviation=spread,
        standard_error=spread / math.sqrt(len(logs)),
        degrees=len(logs) - 1,
        pairs=len(logs),
    )


def unpaired(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The ratio of two geometric means of independent launches: Welch's interval of the difference of the logarithms.

    With a single launch on one side, there is no interval. Raises statistics.StatisticsError without launches.
    """
    logs = [[math.log(value) for value in side] for side in (ours, theirs)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    if min(map(len, logs)) < 2:
        return Ratio(value=math.exp(difference), deviation=0.0, standard_error=0.0, degrees=0, pairs=0)
    variances = [statistics.variance(side) for side in logs]
    of_means = [variance / len(side) for variance, side in zip(variances, logs, strict=True)]
    squares = sum(each**2 / (len(side) - 1) for each, side in zip(of_means, logs, strict=True))
    return Ratio(
        value=math.exp(difference),
        deviation=math.sqrt(sum(variances)),
        standard_error=math.sqrt(sum(of_means)),
        degrees=sum(of_means) ** 2 / squares if squares else sum(map(len, logs)) - 2,
        pairs=0,
    )
