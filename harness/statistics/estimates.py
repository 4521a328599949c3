"""A number from several measurements, with its interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.statistics.intervals import Interval, deviation, geometric_interval, geometric_mean

UNSTABLE = 0.1
"""A standard deviation from this share of the mean on is too large for a number to be relied on. pyperf warns from the
same share on (psf/pyperf, doc/cli.rst, pyperf check)."""

Of = Literal["launches", "blocks"]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A positive quantity: `value`, and the measurements that vary around it.

    `of`: "launches", of which `value` is the geometric mean; or "blocks" of a single launch, which are not independent
    of each other and so have no interval.
    """

    value: float
    values: tuple[float, ...]
    of: Of

    @property
    def interval(self) -> Interval | None:
        """The 95% interval; None for fewer than FEWEST launches."""
        return geometric_interval(self.values) if self.of == "launches" else None

    @property
    def relative_deviation(self) -> float:
        """The standard deviation of the measurements, as a share of their mean."""
        return deviation(self.values) / abs(statistics.fmean(self.values))

    @property
    def unstable(self) -> bool:
        """Whether the measurements differ so much that the number cannot be relied on."""
        return self.relative_deviation >= UNSTABLE


def of_launches(values: Sequence[float]) -> Estimate:
    """The geometric mean of launches. Raises statistics.StatisticsError without any."""
    return Estimate(value=geometric_mean(values), values=tuple(values), of="launches")
