"""From the ranks' times to a throughput."""

from __future__ import annotations

from collections.abc import Sequence


def slowest_rank(block_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each block of the whole trial. A block ends when its slowest rank does.

    `block_seconds[rank][block]`; raises ValueError if ranks report different numbers of blocks.
    """
    return [max(ranks) for ranks in zip(*block_seconds, strict=True)]


def throughput(*, global_batch: int, steps: int, seconds: float) -> float:
    """Samples per second: `steps` global batches in `seconds`."""
    return global_batch * steps / seconds
