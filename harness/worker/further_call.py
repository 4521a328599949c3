"""The inspection `further_call`: one more call from the initial weights, with the optimizer as the blocks left it.

harness/gate/further_update.py says why, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.contract import Moments
from harness.gate import further_update
from harness.gate.runs import normalization
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.spec.kinds import StatisticsOf
from harness.worker.calls import make_steps
from harness.worker.context import Context
from harness.worker.loading import initial_state, load
from harness.worker.package_modules import optional_module

AFFORDABLE = 2e9
"""Floating-point operations of the forward passes that NumPy repeats after the blocks of each launch, alone or with
their gradients: a few tenths of a second of a core's time. The curve's budget would allow ten times as many, but it is
spent once for all launches."""


def affordable(context: Context, *, steps: int = 1) -> bool:
    """Whether NumPy can afford to repeat so many steps of the timed batch."""
    spec, workload = context.spec, context.job.workload
    return workload.has_reference and workload.flops_per_unit() / 3 * spec.global_batch * steps <= AFFORDABLE


def further_call(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does a call on the batches of the blocks make the updates that NumPy makes? If not, the next batch is tried."""
    spec, program = context.spec, context.program
    module = optional_module(context.order.package, "moments")
    if spec.algorithm != "synchronous" or module is None or not affordable(context, steps=spec.steps_per_call):
        return
    start = context.agree.arrays("further-call", _initial_with_optimizer(context))
    moments = module.moments(start, context.job.workload)
    made, calls = context.made.steps, spec.steps_per_call
    checks: list[Check] = []
    for attempt in range(further_update.ATTEMPTS):
        load(context, start)
        numbers = [(attempt + number) % len(resident) for number in range(calls)]
        make_steps(program, [resident[number] for number in numbers])
        program.sync()
        after = program.state()
        checks = [] if context.draft.rank or after is None else _compare(context, moments, after, numbers, made)
        if context.agree.on(f"further-call-{attempt}", float(all(check.passed for check in checks))):
            break
    context.made(calls)
    yield from checks


def _initial_with_optimizer(context: Context) -> Arrays:
    """The initial weights and running statistics, with the moments and counts that the program has now. A collective.

    Without the running statistics that each device has for itself: they begin anew, too.
    """
    state = context.program.state() or {}
    kept = {
        name: array
        for name, array in state.items()
        if name.startswith("optimizer/") and not name.startswith("optimizer/running/")
    }
    return initial_state(context) | kept


def _compare(context: Context, moments: Moments, after: Arrays, numbers: Sequence[int], made: int) -> list[Check]:
    """On rank 0: the state after the call, against NumPy's. `numbers`: the resident batches of its steps."""
    spec, job = context.spec, context.job
    batches = [context.batches.batch(spec.curve_steps + number, spec.global_batch) for number in numbers]
    right = further_update.compute(
        job.workload,
        spec.optimizer,
        job.params,
        moments,
        batches,
        groups=normalization(spec, spec.options),
        made=made,
    )
    # parts that follow one another move the statistics one by one, and only their order says how far
    at_once = job.workload.normalizes and job.statistics_updates == 1
    kept: StatisticsOf | None = getattr(context.program, "statistics_of", "all") if at_once else None
    judged = spec.judged_precision
    return list(further_update.compare(right, after, precision=spec.precision, tolerances=judged, statistics_of=kept))
