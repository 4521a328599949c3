"""Whether a launch's speed is that of its host, which launches the work, or that of its GPUs."""

from __future__ import annotations

from statistics import median

from harness.results.rates import slowest_rank
from harness.spec import TrialResult

HOST_SHARE = 0.9
"""From this share of a steady step on, the call that launches a step takes as long as the step. Other steps are
launched while the GPUs still work on the step before."""


def host_bound(result: TrialResult) -> bool | None:
    """Whether the host of a launch on GPUs takes at least HOST_SHARE of a steady step until the call of a step returns.

    The slowest rank counts. A call that itself waits for the devices counts as well: nothing overlaps with it. None:
    not known, because the launch ran on CPU devices, whose calls compute, or has no series of single steps.
    """
    medians = [median(timing.call_seconds) for timing in result.timings if timing.call_seconds]
    if result.spec.platform != "gpu" or not medians or not result.block_seconds:
        return None
    step = median(slowest_rank(result.block_seconds)) / result.steps_per_block
    return max(medians) >= HOST_SHARE * step
