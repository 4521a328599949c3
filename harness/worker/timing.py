"""The stopwatch: blocks of steps between synchronizations of all ranks. The clock is passed in: tests fake it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from harness.contract import Program


def time_first_step(program: Program, placed: Any, *, clock: Callable[[], float], barrier: Callable[[], None]) -> float:
    """Seconds from calling the first step to idle devices: tracing, compilation and autotuning included."""
    return time_call(program, lambda: program.step(placed), clock=clock, barrier=barrier)


def time_blocks(
    program: Program,
    placed: Sequence[Any],
    *,
    blocks: int,
    steps_per_block: int,
    clock: Callable[[], float],
    barrier: Callable[[], None],
) -> list[float]:
    """Seconds of each block of steps on this rank. Batches wait on the devices and are used in turn."""

    def steps() -> None:
        for step in range(steps_per_block):
            program.step(placed[step % len(placed)])

    return [time_call(program, steps, clock=clock, barrier=barrier) for _ in range(blocks)]


def time_call(
    program: Program, call: Callable[[], None], *, clock: Callable[[], float], barrier: Callable[[], None]
) -> float:
    """Seconds of a block on this rank: wait for this process's devices and for the other ranks, read the clock, call,
    wait for the devices, read the clock."""
    program.sync()  # no work of the previous block may run into this one
    barrier()  # the ranks start together, so that the slowest one's time is the step's time
    start = clock()
    call()
    program.sync()  # steps are asynchronous: without this the clock would read how fast Python can enqueue
    return clock() - start


def steps_for(seconds: float, *, step_seconds: float, at_least: int) -> int:
    """How many steps last `seconds`, no fewer than `at_least`."""
    return max(at_least, math.ceil(seconds / step_seconds))


def whole_rounds(steps: int, *, of: int) -> int:
    """The smallest multiple of `of` that is at least `steps`."""
    return of * math.ceil(steps / of)
