"""The loss curve: the first steps of a timed run, from the initial weights, and the time of the very first call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from harness.contract import Program
from harness.gate import timed_curve
from harness.reference.golden import Golden
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.worker import timing
from harness.worker.calls import make_steps, read_losses
from harness.worker.context import Context
from harness.worker.divergence import check_loss


def place(context: Context, step: int) -> Any:
    """Put this process's share of a step's global batch on its devices."""
    batch = context.batches.batch(step, context.spec.global_batch, dtype=context.dtype)
    return context.program.place(batch)


def follow_curve(context: Context) -> None:
    """Make the first `curve_steps` steps from the initial weights, in calls as the timed blocks make them.

    Notes their losses and the seconds of the first call until the devices are idle, which include tracing, compilation
    and autotuning.
    """
    program, spec, draft = context.program, context.spec, context.draft
    losses: list[float] = []
    golden = context.golden
    for start in range(0, spec.curve_steps, spec.steps_per_call):
        steps = range(start, start + spec.steps_per_call)
        draft.progress("loss curve, step", steps[-1] + 1, spec.curve_steps)
        placed, handles = [place(context, step) for step in steps], []
        call = partial(_call, program, placed, handles)
        if start == 0:
            first = timing.time_call(program, call, clock=time.perf_counter, barrier=context.agree.barrier)
            draft.note_timing(first_step_seconds=first.seconds)
        else:
            call()
        context.made(len(steps))
        for step, loss in zip(steps, read_losses(program, handles), strict=True):
            losses.append(loss)
            draft.note_timing(losses=tuple(losses))
            check_loss(losses, step)
        if golden is not None and len(losses) == len(golden.losses):
            draft.note_timing(checks=compare(context, golden, losses))


def compare(context: Context, golden: Golden, losses: Sequence[float]) -> tuple[Check, ...]:
    """The curve so far, and the weights at its end, against the reference. A collective.

    Between two averagings of local training, the mean of the workers' weights is compared. Before the first push of
    each worker, only losses are known.
    """
    spec = context.spec
    if spec.algorithm == "asynchronous":
        if not spec.updates(len(losses)):
            return ()
        return timed_curve.compare_stale(golden, replicas=context.replicas())
    averaged = len(losses) % spec.exchange_interval == 0
    return timed_curve.compare(
        golden,
        losses=losses,
        replicas=context.replicas() if averaged else _mean_of_workers(context),
        precision=spec.precision,
        tolerance_set=spec.tolerances,
    )


def _mean_of_workers(context: Context) -> list[Arrays]:
    """The mean of the workers' weights, which a state has, on rank 0. A collective."""
    state = context.state()
    if context.draft.rank:
        return []
    return [{name: state[f"model/{name}"] for name in context.job.params}]


def _call(program: Program, placed: Sequence[Any], handles: list[Any]) -> None:
    """One call; adds its losses to `handles`."""
    handles += make_steps(program, placed)
