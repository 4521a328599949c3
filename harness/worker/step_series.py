"""Single steps, each timed from sync to sync: the distribution that blocks of steps cannot show.

The series comes after the timed blocks and is no part of the throughput: a program that is waited for after each call
may be slower than one that is not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from harness.spec import TrialSpec
from harness.worker import timing
from harness.worker.context import Context

SECONDS = 2.0  # of a series that can have as many calls as that
CALLS = (20, 200)  # at least and at most; the p99 of 200 is their second highest
CALLS_WITHOUT_WARMUP = (5, 10)  # such a launch looks whether a cell works
CHUNK = 10  # calls between two signs of progress, and between two barriers


def time_series(context: Context, resident: Sequence[Any]) -> None:
    """Make the series, and note the seconds of each step and of each call until it returned. All ranks call it
    together. A call of several steps is one entry, divided by their number."""
    spec, draft = context.spec, context.draft
    of_call = spec.steps_per_call * median(draft.timing.block_seconds) / draft.timing.steps_per_block
    calls = calls_of_series(spec, context.agree.on("call of the series", of_call))
    series: list[timing.TimedCall] = []
    for start in range(0, calls, CHUNK):
        draft.progress("step by step", start, calls)
        series += timing.time_calls(
            context.program,
            resident,
            numbers=range(start, min(start + CHUNK, calls)),
            steps_per_call=spec.steps_per_call,
            clock=time.perf_counter,
            barrier=context.agree.barrier,
        )
    context.made(calls * spec.steps_per_call)
    draft.note_timing(
        step_seconds=tuple(each.seconds / spec.steps_per_call for each in series),
        call_seconds=tuple(each.until_returned / spec.steps_per_call for each in series),
    )


def calls_of_series(spec: TrialSpec, call_seconds: float) -> int:
    """How many calls a series has if each takes so many seconds. Workers go on to their next exchange."""
    least, most = CALLS if spec.warmup_seconds else CALLS_WITHOUT_WARMUP
    fit = min(most, max(least, int(SECONDS / call_seconds)))
    return timing.whole_rounds(fit, of=spec.whole_rounds // spec.steps_per_call)
