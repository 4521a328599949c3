"""Whether a launch's speed is that of its host, which launches the work, or that of its GPUs."""

from __future__ import annotations

from statistics import median

from harness.results.rates import block_step
from harness.spec import TrialResult

HOST_SHARE = 0.9
"""From this share of a steady step on, the call that launches a step takes as long as the step. Other steps are
launched while the GPUs still work on the step before."""


def host_share(result: TrialResult) -> float | None:
    """The share of a steady step until the call that launches a step returns.

    The slowest rank counts. A call that itself waits for the devices counts as well: nothing overlaps with it. None:
    not known, because the launch ran on CPU devices, whose calls compute, or has no series of single steps.
    """
    medians = [median(timing.call_seconds) for timing in result.timings if timing.call_seconds]
    step = block_step(result)
    if result.spec.platform != "gpu" or not medians or step is None:
        return None
    return max(medians) / step


def host_bound(result: TrialResult) -> bool | None:
    """Whether the host's share of a steady step is at least HOST_SHARE; None: not known."""
    share = host_share(result)
    return None if share is None else share >= HOST_SHARE
