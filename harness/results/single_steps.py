"""What the single steps after the timed blocks say: their distribution, and what it costs to wait for each."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from harness.results.rates import block_step, slowest_rank
from harness.spec import TrialResult

LEAST_FOR_P99 = 100
"""Of fewer steps, the 99th percentile is that of none: it lies beyond the second highest."""


def single_steps(result: TrialResult) -> list[float]:
    """Seconds of each single step of a launch, on its slowest rank; none if none was timed."""
    return slowest_rank([timing.step_seconds for timing in result.timings])


def of_all(launches: Sequence[TrialResult]) -> list[float]:
    """Seconds of the single steps of all launches."""
    return [seconds for result in launches for seconds in single_steps(result)]


def percentile(seconds: Sequence[float], percent: float) -> float | None:
    """A percentile of single steps in seconds, between two steps on the line between them (Hyndman & Fan 1996, type 7).
    None without steps, or if it is the 99th of fewer than LEAST_FOR_P99."""
    if not seconds or (percent == 99 and len(seconds) < LEAST_FOR_P99):
        return None
    return float(np.percentile(seconds, percent))


def synchronization_seconds(result: TrialResult) -> float | None:
    """What it costs to wait for each step: the median single step minus a step of the blocks, which are waited for at
    their ends alone. It may be negative, by the noise of both. None: not known."""
    steps, of_block = single_steps(result), block_step(result)
    return median(steps) - of_block if steps and of_block is not None else None
