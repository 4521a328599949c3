"""Where the variance of a cell comes from: from launch to launch, or from block to block within a launch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Variance:
    """Standard deviations as shares of the mean. `between` is that of launches, without what blocks contribute to it.

    None: a single launch shows nothing between launches, and a single block nothing within one.
    """

    within: float | None
    between: float | None

    @property
    def share_between(self) -> float | None:
        """The share of a single block's variance that is between launches; None if it is not known."""
        if self.within is None or self.between is None or not (self.within or self.between):
            return None
        return self.between**2 / (self.within**2 + self.between**2)


def components(launches: Sequence[Sequence[float]]) -> Variance:
    """The two levels of variance, on the logarithmic scale. `launches[launch][block]`: positive values.

    T1^2 = the mean variance of blocks within a launch; T2^2 = the variance of launches' means minus T1^2 / blocks
    (Kalibera & Jones 2013, ISMM, section 6.2); a negative T2^2 counts as 0.
    """
    logs = [[math.log(value) for value in blocks] for blocks in launches]
    several = [blocks for blocks in logs if len(blocks) > 1]
    within = statistics.fmean(map(statistics.variance, several)) if several else None
    if len(logs) < 2:
        return Variance(within=None if within is None else math.sqrt(within), between=None)
    blocks = statistics.harmonic_mean([len(launch) for launch in logs])
    total = statistics.variance([statistics.fmean(launch) for launch in logs])
    between = max(0.0, total - (within or 0.0) / blocks)
    return Variance(within=None if within is None else math.sqrt(within), between=math.sqrt(between))


def best_blocks(found: Variance, *, launch_cost: float, block_cost: float) -> int | None:
    """How many blocks per launch give the narrowest interval for the time: sqrt(T1^2 / T2^2 * cost of a launch / cost
    of a block) (Kalibera & Jones 2013, ISMM, equation 3). None if it is not known, or if launches do not differ."""
    if not found.within or not found.between or block_cost <= 0:
        return None
    return max(1, round(found.within / found.between * math.sqrt(launch_cost / block_cost)))
