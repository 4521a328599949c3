"""The stopwatch: blocks of steps between synchronizations of all ranks. The clock is handed in, so it can be faked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from harness.contract import Program


def time_first_step(program: Program, placed: Any, *, clock: Callable[[], float], barrier: Callable[[], None]) -> float:
    """Seconds from calling the first step to idle devices: tracing, compilation and autotuning included."""
    program.sync()
    barrier()  # else an early rank's first step would include waiting for a late one
    start = clock()
    program.step(placed)
    program.sync()
    return clock() - start


def time_blocks(
    program: Program,
    placed: Sequence[Any],
    *,
    blocks: int,
    steps_per_block: int,
    clock: Callable[[], float],
    barrier: Callable[[], None],
    progress: Callable[[int], None] = lambda block: None,
) -> list[float]:
    """Seconds of each block on this rank.

    A block is: wait for this process's devices, meet the other ranks, read the clock, run the steps, wait for the
    devices, read the clock. Batches wait on the devices and are used in turn. `progress` runs between blocks, untimed.
    """
    seconds, step = [], 0
    for block in range(blocks):
        progress(block)
        program.sync()  # nothing of the block before may run into this one
        barrier()  # the ranks start together, so that the slowest one's time is the step's time
        start = clock()
        for _ in range(steps_per_block):
            program.step(placed[step % len(placed)])
            step += 1
        program.sync()  # steps are asynchronous: without this the clock would read how fast Python can enqueue
        seconds.append(clock() - start)
    return seconds


def steps_for(seconds: float, *, step_seconds: float, at_least: int) -> int:
    """How many steps last `seconds`, no fewer than `at_least`."""
    return max(at_least, math.ceil(seconds / step_seconds))


def whole_rounds(steps: int, *, of: int) -> int:
    """The least multiple of `of` that is not below `steps`."""
    return of * math.ceil(steps / of)


def slowest_rank(block_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each block of the whole trial: a block ends when its slowest rank does.

    `block_seconds[rank][block]`; raises ValueError if ranks report different numbers of blocks.
    """
    return [max(ranks) for ranks in zip(*block_seconds, strict=True)]


def throughput(*, global_batch: int, steps: int, seconds: float) -> float:
    """Samples per second: `steps` global batches in `seconds`."""
    return global_batch * steps / seconds
