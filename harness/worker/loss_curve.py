"""The loss curve: the first steps of a timed run, from the initial weights, and the time of the very first step."""

from __future__ import annotations

import time
from typing import Any

from harness.worker import timing
from harness.worker.context import Context
from harness.worker.divergence import check_loss


def place(context: Context, step: int) -> Any:
    """Put this process's share of a step's global batch on its devices."""
    batch = context.batches.batch(step, context.spec.global_batch, dtype=context.dtype)
    return context.program.place(batch)


def follow_curve(context: Context) -> None:
    """Make the first `curve_steps` steps from the initial weights. Note their losses and the time of the first."""
    program, spec, draft = context.program, context.spec, context.draft
    losses: list[float] = []
    for step in range(spec.curve_steps):
        draft.progress("loss curve, step", step + 1, spec.curve_steps)
        placed = place(context, step)
        if step == 0:
            first = timing.time_first_step(program, placed, clock=time.perf_counter, barrier=context.agree.barrier)
            draft.note_timing(first_step_seconds=first)
        else:
            program.step(placed)
        losses.append(program.loss())
        draft.note_timing(losses=tuple(losses))
        check_loss(losses, step)
