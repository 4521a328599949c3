"""The inspection `further_call`: one more call from the initial weights, with the optimizer as the blocks left it.

harness/gate/further_update.py says why, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.contract import Moments
from harness.gate import further_update, without_gradients
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
    """Does a call on the batches of the blocks make the updates that NumPy makes? If not, the next batch is tried.

    Where NumPy cannot afford them: does it decay the weights?
    """
    spec, workload = context.spec, context.job.workload
    module = optional_module(context.order.package, "moments")
    if spec.algorithm != "synchronous" or module is None:
        return
    with_gradients = affordable(context, steps=spec.steps_per_call)
    if not with_gradients and not without_gradients.shows_decay(workload, spec.optimizer, steps=spec.steps_per_call):
        return
    start = context.agree.arrays("further-call", _initial_with_optimizer(context))
    moments = module.moments(start, workload)
    made = context.made.steps
    checks: list[Check] = []
    for attempt in range(further_update.ATTEMPTS if with_gradients else 1):
        numbers = [(attempt + number) % len(resident) for number in range(spec.steps_per_call)]
        after = _called(context, start, [resident[number] for number in numbers])
        if context.draft.rank or after is None:
            checks = []
        elif with_gradients:
            checks = _compare(context, moments, after, numbers, made)
        else:
            known = {"params": context.job.params, "moments": moments, "found": after, "made": made}
            found = without_gradients.decay(workload, spec.optimizer, **known, precision=spec.precision)
            checks = [] if found is None else [found]
        if context.agree.on(f"further-call-{attempt}", float(all(check.passed for check in checks))):
            break
    context.made(spec.steps_per_call)
    yield from checks


def statistics_kept(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """How much of its running statistics does a call keep? Two calls on the same batches, from the initial weights."""
    spec, start = context.spec, initial_state(context)
    if spec.algorithm != "synchronous" or not context.job.workload.normalizes:
        return
    other = {name: array + 1.0 if name.startswith("running/") else array for name, array in start.items()}
    placed = [resident[number % len(resident)] for number in range(spec.steps_per_call)]
    found = [_called(context, state, placed) for state in (start, other)]
    if context.draft.rank == 0 and found[0] is not None and found[1] is not None:
        known = {"steps": spec.steps_per_call, "precision": spec.precision}
        yield without_gradients.kept_statistics((start, other), (found[0], found[1]), **known)


def _called(context: Context, start: Arrays, placed: Sequence[Any]) -> Arrays | None:
    """The state after one call from the state `start`. A collective."""
    load(context, start)
    make_steps(context.program, placed)
    context.program.sync()
    return context.program.state()


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
