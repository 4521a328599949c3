"""What a ratio and its interval allow one to say: faster, a tie, or not resolved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.statistics.intervals import t_quantile
from harness.statistics.ratios import Ratio

SIGNIFICANCE = 0.05
POWER = 0.8  # of the number of launches that is asked for
LEAST_MARGIN = 0.01
"""Differences below 1% are of no practical interest here: another compilation of one program changes its speed by a
quarter of that (docs/method.md)."""
MOST_LAUNCHES = 1000  # that anybody would make

Outcome = Literal["faster", "slower", "tie", "unresolved", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one ratio of a table shows.

    "faster", "slower": the ratio is not 1 (Holm-adjusted p below 5%), and is further from 1 than the margin.
    "tie": the whole 95% interval lies within the margin. "unresolved": neither; about `needed` launches would tell, if
    they vary as these did and the ratio is the true one (None: more than 1,000). "unknown": a single pair has no
    interval.
    """

    outcome: Outcome
    ratio: Ratio
    margin: float
    adjusted_p: float
    needed: int | None = None


def judge(ratios: Sequence[Ratio], *, margin: float = LEAST_MARGIN, family: int = 0) -> list[Verdict]:
    """The verdict of each ratio, as one of all these contrasts: Holm's method keeps the probability that any two equal
    cells are told apart below 5% (Holm 1979, Scandinavian Journal of Statistics 6).

    `family`: the number of contrasts that could have been chosen, if it is larger. Who compares the fastest of k cells
    with the others has chosen from k (k - 1) / 2.
    """
    adjusted = holm([ratio.p for ratio in ratios], family=family)
    return [_verdict(ratio, p, margin) for ratio, p in zip(ratios, adjusted, strict=True)]


def _verdict(ratio: Ratio, adjusted_p: float, margin: float) -> Verdict:
    outcome: Outcome = "unresolved"
    interval, widest = ratio.tested, math.log1p(margin)
    if interval is None:
        outcome = "unknown"
    elif math.log(interval.low or math.ulp(0)) >= -widest and math.log(interval.high) <= widest:
        outcome = "tie"
    elif adjusted_p < SIGNIFICANCE and abs(ratio.log) > widest:
        outcome = "faster" if ratio.log > 0 else "slower"
    needed = launches_needed(ratio, margin=margin) if outcome == "unresolved" else None
    return Verdict(outcome=outcome, ratio=ratio, margin=margin, adjusted_p=adjusted_p, needed=needed)


def holm(p_values: Sequence[float], *, family: int = 0) -> list[float]:
    """Holm's adjusted p-values, in the order of the given ones. `family`: see judge."""
    number = max(family, len(p_values))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (number - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def launches_needed(ratio: Ratio, *, margin: float = LEAST_MARGIN) -> int | None:
    """About how many launches would resolve this ratio: to an order if it lies outside the margin, else to a tie.

    The smallest n whose interval, with a power of 80%, is narrower than the distance that matters. None: more than
    1,000.
    """
    distance = abs(abs(ratio.log) - math.log1p(margin))
    if abs(ratio.log) > math.log1p(margin):
        distance = abs(ratio.log)
    for count in range(2, MOST_LAUNCHES + 1):
        reach = t_quantile(count - 1) + t_quantile(count - 1, confidence=2 * POWER - 1)
        if reach * ratio.deviation <= distance * math.sqrt(count):
            return count
    return None


def practical_margin(floor: float | None) -> float:
    """The margin below which a difference is a tie: twice the A/A floor, and at least 1%.

    `floor`: the standard error of the logarithm of an A/A ratio, whose true value is known to be 0; None: there is no
    A/A pair.
    """
    return max(LEAST_MARGIN, math.expm1(2 * floor) if floor else 0.0)


def floor_of(ratio: Ratio) -> float | None:
    """The A/A floor: the standard error of the mean of the logarithms of an A/A pair's ratios within rounds, around the
    truth of 0. None without two rounds."""
    if ratio.pairs < 2:
        return None
    squares = (ratio.pairs - 1) * ratio.deviation**2 + ratio.pairs * ratio.log**2  # of all logarithms, summed
    return math.sqrt(squares) / ratio.pairs
