"""From the ranks' times to a throughput."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.spec import TrialResult


def slowest_rank(block_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each block of the whole trial. A block ends when its slowest rank does.

    `block_seconds[rank][block]`; raises ValueError if ranks report different numbers of blocks.
    """
    return [max(ranks) for ranks in zip(*block_seconds, strict=True)]


def throughput(*, global_batch: int, steps: int, seconds: float) -> float:
    """Samples per second: `steps` global batches in `seconds`."""
    return global_batch * steps / seconds


def counted_seconds(result: TrialResult) -> list[float]:
    """Seconds of the blocks that count, each as long as its slowest rank took.

    With protocol from_host, a launch's first block does not count: it alone loads the libraries and kernels, which
    takes longer than its steps.
    """
    seconds = slowest_rank(result.block_seconds)
    return seconds[1:] if result.spec.protocol == "from_host" and len(seconds) > 1 else seconds


def block_steps(result: TrialResult) -> list[float]:
    """Seconds per step of each block of one launch that counts.

    Launches have blocks of different numbers of steps, each as many as fill the planned time. So two launches can be
    compared by this, and not by the seconds of their blocks.
    """
    return [seconds / result.steps_per_block for seconds in counted_seconds(result)]


def launch_throughput(result: TrialResult) -> float:
    """Samples per second of one launch: all its steps divided by all its time."""
    seconds = counted_seconds(result)
    steps = result.steps_per_block * len(seconds)
    return throughput(global_batch=result.spec.global_batch, steps=steps, seconds=sum(seconds))


def block_throughputs(result: TrialResult) -> list[float]:
    """Samples per second of each block of one launch."""
    batch, steps = result.spec.global_batch, result.steps_per_block
    return [throughput(global_batch=batch, steps=steps, seconds=seconds) for seconds in counted_seconds(result)]


def over_bare_loop(result: TrialResult) -> float | None:
    """The time of a launch's blocks divided by that of a minimal loop over the same model.

    Each block is paired with the minimal loop's block of the same number; the result is the median over the pairs. None
    if there was no minimal loop.
    """
    bare, own = slowest_rank(result.bare_block_seconds), slowest_rank(result.block_seconds)
    ratios = [ours / theirs for ours, theirs in zip(own, bare, strict=False)]
    return median(ratios) if ratios else None


def block_step(result: TrialResult) -> float | None:
    """Seconds of a step in the median block of one launch, on its slowest rank; None if it was not timed."""
    if not result.block_seconds or not result.steps_per_block:
        return None
    return median(slowest_rank(result.block_seconds)) / result.steps_per_block
