"""The inspection `further_call`: one more call from the initial weights, with the optimizer as the blocks left it.

harness/gate/further_update.py says why, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.gate import further_update
from harness.gate.runs import normalization
from harness.layers import running_statistics
from harness.spec import Check, Precision
from harness.spec.arrays import Arrays
from harness.spec.kinds import StatisticsOf
from harness.worker.calls import make_steps
from harness.worker.context import Context
from harness.worker.loading import load
from harness.worker.package_modules import optional_module

AFFORDABLE = 6e9
"""Floating-point operations of the gradients that NumPy computes: some tenths of a second of a core's time."""


def further_call(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does a call on the batches of the blocks make the updates that NumPy makes? The next batch is tried if not."""
    spec, program = context.spec, context.program
    if not _affordable(context):
        return
    start = context.agree.arrays("further-call", _initial_with_optimizer(context))
    made, calls = context.made.steps, spec.steps_per_call
    checks: list[Check] = []
    for attempt in range(further_update.ATTEMPTS):
        load(context, start)
        numbers = [(attempt + number) % len(resident) for number in range(calls)]
        make_steps(program, [resident[number] for number in numbers])
        program.sync()
        after = program.state()
        checks = [] if context.draft.rank or after is None else _compare(context, start, after, numbers, made)
        if context.agree.on(f"further-call-{attempt}", float(all(check.passed for check in checks))):
            break
    context.made(calls)
    yield from checks


def _affordable(context: Context) -> bool:
    spec, workload = context.spec, context.job.workload
    return (
        spec.algorithm == "synchronous"
        and optional_module(context.order.package, "moments") is not None
        and workload.has_reference
        and workload.flops_per_unit() * spec.global_batch * spec.steps_per_call <= AFFORDABLE
    )


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
    running = running_statistics.initial(context.job.workload.layers)
    model = {f"model/{name}": array for name, array in context.job.params.items()}
    return model | {f"running/{name}": array for name, array in running.items()} | kept


def _compare(context: Context, start: Arrays, after: Arrays, numbers: Sequence[int], made: int) -> list[Check]:
    """On rank 0: the state after the call, against NumPy's. `numbers`: the resident batches of its steps."""
    spec, job = context.spec, context.job
    batches = [context.batches.batch(spec.curve_steps + number, spec.global_batch) for number in numbers]
    right = further_update.compute(
        job.workload,
        spec.optimizer,
        job.params,
        optional_module(context.order.package, "moments").moments(start, job.workload),
        batches,
        groups=normalization(spec, spec.options)(spec.global_batch),
        made=made,
    )
    # parts that follow one another move the statistics one by one, and only their order says how far
    at_once = job.workload.normalizes and job.statistics_updates == 1
    kept: StatisticsOf | None = getattr(context.program, "statistics_of", "all") if at_once else None
    rounded: Precision = "bf16" if spec.tolerances == "bf16_gradients" else spec.precision
    return list(further_update.compare(right, after, precision=spec.precision, tolerances=rounded, statistics_of=kept))
