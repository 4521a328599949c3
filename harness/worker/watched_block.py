"""A block that is run as the timed ones are, but watched: the program's state is read before and after it.

It stands at a random place among the timed blocks, so that a program cannot know it. After the last block its steps are
made again, one call at a time. This finds steps that do less than they should because of how often, or how soon after
another step, they are called: harness/gate/replay.py.

Two more things are seen here. Reading the state needs all steps of the block. If a program has put some off, and its
`sync` does not make them, it makes them now, and the first reading takes longer than the second. And a program that
makes all steps only where its state is read needs more time for this block than for others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.gate import timed_program
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.worker import timing
from harness.worker.calls import make_steps
from harness.worker.context import Context
from harness.worker.loss_curve import place
from harness.worker.replays import compare_replays


@dataclass(frozen=True, kw_only=True)
class WatchedBlock:
    """A block's steps, and on rank 0 the state before and after them."""

    steps: int = 0
    before: Arrays = field(default_factory=dict)
    after: Arrays = field(default_factory=dict)


def watch(context: Context, time_block: Callable[..., list[timing.Timed]], steps: int) -> WatchedBlock:
    """Make a block of so many steps by `time_block`, as the timed ones are made. All ranks call it together.

    It is compared with the timed blocks so far. Where it seems slow, or its state slow to read, another one is watched,
    because an interruption can cause that as well. It is then compared with blocks that are made between the watched
    ones, because the host may be busy for long.
    """
    usual = median(context.draft.timing.block_seconds) / context.draft.timing.steps_per_block
    others: list[float] = []
    seconds: list[float] = []
    left: list[float] = []
    with context.draft.timed_check("watched block"):
        while True:
            context.draft.progress("watched block", len(left) + 1, timed_program.ATTEMPTS)
            before = context.state()
            (block,) = time_block(steps_per_block=steps)
            context.made(steps)
            after, longer = timing.work_left(context.state, clock=time.perf_counter, meet=context.agree.meet)
            seconds.append(block.seconds / steps)
            left.append(longer)
            unread = timed_program.work_after_sync(left, steps * min(seconds))
            slow = timed_program.pace_of_watched(
                context.spec.platform, of_watched=min(seconds), of_blocks=median(others) if others else usual
            )
            passed = context.agree.everywhere(f"watched-{len(left)}", unread.passed and slow.passed)
            if passed or len(left) == timed_program.ATTEMPTS:
                break
            others.append(_seconds_of_unwatched_step(context, time_block, steps))
        context.draft.note_checks([unread, slow] if context.draft.rank == 0 else [unread])
    return WatchedBlock(steps=steps, before=before, after=after)


def _seconds_of_unwatched_step(context: Context, time_block: Callable[..., list[timing.Timed]], steps: int) -> float:
    """The seconds of a step in a block that follows another one, as the timed ones do."""
    found = []
    for _ in range(2):
        found += time_block(steps_per_block=steps)
        context.made(steps)
        timing.work_left(context.program.loss, clock=time.perf_counter, meet=context.agree.meet)
    return found[-1].seconds / steps


def replayed_block(context: Context, watched: WatchedBlock, resident: Sequence[Any]) -> Iterable[Check]:
    """Load the state from before the block, and make its steps again, waiting after each call.

    The order of asynchronous updates is not known, and theirs are counted instead.
    """
    if context.spec.algorithm == "asynchronous":
        return
    anew, of_call = placed_anew(context, len(resident)), context.spec.steps_per_call

    def make() -> None:
        for start in range(0, watched.steps, of_call):
            make_steps(context.program, [anew[step % len(anew)] for step in range(start, start + of_call)])
            context.program.sync()

    yield from compare_replays(context, watched.before, watched.after, make)


def placed_anew(context: Context, count: int) -> list[Any]:
    """The `count` batches of the blocks once more, and so often that no call takes one twice.

    A program that recognizes a batch by its place in memory, and does less for one that it has seen, makes other steps
    with these.
    """
    rounds = math.ceil(context.spec.steps_per_call / count)
    return [place(context, context.spec.curve_steps + number % count) for number in range(rounds * count)]
