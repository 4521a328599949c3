"""A block that is run as the timed ones are, but watched: the program's state is read before and after it.

It stands at a random place among the timed blocks, so that a program cannot know it. After the last block its steps are
made again, one call at a time. So a step that does less than it should, because of how often or how soon after another
it is called, is found: harness/gate/replay.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.gate import replay
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.worker.calls import make_steps
from harness.worker.context import Context
from harness.worker.loading import load
from harness.worker.loss_curve import place


@dataclass(frozen=True, kw_only=True)
class WatchedBlock:
    """A block's steps, and on rank 0 the state before and after them."""

    steps: int = 0
    before: Arrays = field(default_factory=dict)
    after: Arrays = field(default_factory=dict)


def watch(context: Context, time_block: Callable[..., object], steps: int) -> WatchedBlock:
    """Make a block of so many steps by `time_block`, as the timed ones are made. All ranks call it together."""
    with context.draft.timed_check("watched block"):
        before = context.program.state()
        time_block(steps_per_block=steps)
        context.made(steps)
        after = context.program.state()
    return WatchedBlock(steps=steps, before=before or {}, after=after or {})


def replayed_block(context: Context, watched: WatchedBlock, resident: Sequence[Any]) -> Iterable[Check]:
    """Load the state from before the block, and make its steps again, waiting after each call.

    The order of asynchronous updates is not known, and theirs are counted instead.
    """
    if context.spec.algorithm == "asynchronous":
        return
    before, anew = context.agree.arrays("watched", watched.before), placed_anew(context, len(resident))
    replays = [_again(context, before, watched.steps, anew)]
    equal = context.draft.rank != 0 or replay.replayed(before, watched.after, replays).passed
    if not context.agree.on("replayed", float(equal)):
        replays.append(_again(context, before, watched.steps, anew))  # how far do two replays differ?
    if context.draft.rank == 0:
        yield replay.replayed(before, watched.after, replays)


def placed_anew(context: Context, count: int) -> list[Any]:
    """The `count` batches of the blocks once more, and so often that no call takes one twice.

    A program that knows a batch by where it lies, and does less for one that it has seen, does other steps with these.
    """
    rounds = math.ceil(context.spec.steps_per_call / count)
    return [place(context, context.spec.curve_steps + number % count) for number in range(rounds * count)]


def _again(context: Context, before: Arrays, steps: int, placed: Sequence[Any]) -> Arrays:
    """The state after the steps of the block, made one call at a time from the state before it."""
    program, of_call = context.program, context.spec.steps_per_call
    load(context, before)
    for start in range(0, steps, of_call):
        make_steps(program, [placed[step % len(placed)] for step in range(start, start + of_call)])
        program.sync()
    return program.state() or {}
