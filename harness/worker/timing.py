"""The stopwatch: blocks of steps between synchronizations of all ranks. The clock is passed in: tests fake it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.contract import Program
from harness.worker.calls import make_steps


class Timed(NamedTuple):
    """When something that was timed began, in seconds on CLOCK_MONOTONIC, and how many seconds it took."""

    start: float
    seconds: float


def time_blocks(
    program: Program,
    placed: Sequence[Any],
    *,
    blocks: int,
    steps_per_block: int,
    steps_per_call: int = 1,
    clock: Callable[[], float],
    barrier: Callable[[], None],
) -> list[Timed]:
    """Each block of steps as this rank timed it. Batches wait on the devices and are used in turn.

    `steps_per_block` is a multiple of `steps_per_call`: a block holds whole calls.
    """
    calls = [
        [placed[step % len(placed)] for step in range(start, start + steps_per_call)]
        for start in range(0, steps_per_block, steps_per_call)
    ]

    def steps() -> None:
        for batches in calls:
            make_steps(program, batches)

    return [time_call(program, steps, clock=clock, barrier=barrier) for _ in range(blocks)]


def time_call(
    program: Program, call: Callable[[], None], *, clock: Callable[[], float], barrier: Callable[[], None]
) -> Timed:
    """Time a block on this rank: wait for this process's devices and for the other ranks, read the clock, call, wait
    for the devices, read the clock."""
    program.sync()  # no work of the previous block may run into this one
    barrier()  # the ranks start together, so that the slowest one's time is the step's time
    began = time.monotonic()  # what else was recorded on this host is joined by it
    start = clock()
    call()
    program.sync()  # steps are asynchronous: without this the clock would read how fast Python can enqueue
    return Timed(began, clock() - start)


class TimedCall(NamedTuple):
    """One call of the program: seconds until the devices were idle again, and until the call returned."""

    seconds: float
    until_returned: float


def time_calls(
    program: Program,
    placed: Sequence[Any],
    *,
    numbers: Sequence[int],
    steps_per_call: int,
    clock: Callable[[], float],
    barrier: Callable[[], None],
) -> list[TimedCall]:
    """Time the calls of these numbers one by one on this rank, each from sync to sync. The ranks begin together.

    Batches are used in turn, and call 0 takes the first.
    """
    found = []
    program.sync()
    barrier()
    for number in numbers:
        first = number * steps_per_call
        batches = [placed[step % len(placed)] for step in range(first, first + steps_per_call)]
        start = clock()
        make_steps(program, batches)
        returned = clock()
        program.sync()
        found.append(TimedCall(clock() - start, returned - start))
    return found


def work_left(read: Callable[[], Any], *, clock: Callable[[], float], meet: Callable[[], None]) -> tuple[Any, float]:
    """What `read` returns, and the seconds that it waits for work which the program's `sync` has left undone.

    Reading takes time by itself, also across ranks. So it is done twice, and only the difference counts. `meet` waits
    on the host for all ranks; a collective of the devices would do the work that is left.
    """
    meet()  # the slowest rank's time is no work of this one
    start = clock()
    found = read()
    first = clock()
    read()
    return found, (first - start) - (clock() - first)


def steps_for(seconds: float, *, step_seconds: float, at_least: int) -> int:
    """How many steps last `seconds`, no fewer than `at_least`."""
    return max(at_least, math.ceil(seconds / step_seconds))


def whole_rounds(steps: int, *, of: int) -> int:
    """The smallest multiple of `of` that is at least `steps`."""
    return of * math.ceil(steps / of)
