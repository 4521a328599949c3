"""Estimates and their comparison: the one place that says when a number is larger than another, or unstable."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.statistics.intervals import deviation

MIN_LAUNCHES = 5  # with fewer, ranges say too little to rank cells
UNSTABLE = 0.1
"""A standard deviation from this share of the mean on is too large for a number to be relied on. pyperf warns from the
same share on (psf/pyperf, doc/cli.rst, pyperf check)."""

Of = Literal["launches", "blocks", "repeats"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number from several measurements: its value, and the range of the measurements."""

    value: float
    values: tuple[float, ...]
    of: Of

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def relative_deviation(self) -> float:
        """The standard deviation of the measurements, as a share of their mean."""
        return deviation(self.values) / abs(statistics.fmean(self.values))

    @property
    def unstable(self) -> bool:
        """Whether the measurements differ so much that the number cannot be relied on."""
        return self.relative_deviation >= UNSTABLE


def by_median(values: Sequence[float], *, of: Of) -> Estimate:
    """The median. Raises statistics.StatisticsError without values."""
    return Estimate(value=statistics.median(values), values=tuple(values), of=of)


def by_mean(values: Sequence[float], *, of: Of) -> Estimate:
    """The mean. Raises statistics.StatisticsError without values."""
    return Estimate(value=statistics.fmean(values), values=tuple(values), of=of)


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether the ranges have a number in common. If so, no order between the two is claimed."""
    return one.low <= other.high and other.low <= one.high


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Estimates in order, by their index. `ties`: the others whose range overlaps with that of the best."""

    order: tuple[int, ...]
    ties: tuple[int, ...]
    enough: bool  # whether each has so many launches that an order may be claimed at all

    @property
    def best(self) -> int:
        return self.order[0]


def rank(estimates: Sequence[Estimate], *, larger_is_better: bool) -> Ranking:
    """The order of estimates, the best first. Raises IndexError without any."""
    sign = -1 if larger_is_better else 1
    order = sorted(range(len(estimates)), key=lambda index: sign * estimates[index].value)
    best = estimates[order[0]]
    return Ranking(
        order=tuple(order),
        ties=tuple(index for index in order[1:] if overlap(best, estimates[index])),
        enough=all(each.of == "launches" and len(each.values) >= MIN_LAUNCHES for each in estimates),
    )
