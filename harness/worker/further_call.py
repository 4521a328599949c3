"""The inspections that make further calls: from where the blocks ended, and from the initial weights.

harness/gate/further_update.py says why, and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.contract import Moments
from harness.gate import further_direction, further_update, winograd, without_gradients
from harness.gate.runs import normalization
from harness.spec import Check, Precision
from harness.spec.arrays import Arrays
from harness.spec.kinds import StatisticsOf
from harness.worker.calls import make_steps, make_steps_in_turn
from harness.worker.context import Context
from harness.worker.loading import initial_state, load
from harness.worker.loss_curve import place
from harness.worker.package_modules import optional_module
from harness.worker.prove import copied
from harness.workloads import Workload

AFFORDABLE = 2e9
"""Floating-point operations of the forward passes that NumPy repeats after the blocks of each launch, alone or with
their gradients: a few tenths of a second of a core's time. The curve's budget would allow ten times as many, but it is
spent once for all launches."""


def affordable(context: Context, *, steps: int = 1) -> bool:
    """Whether NumPy can afford to repeat so many steps of the timed batch."""
    spec, workload = context.spec, context.job.workload
    return workload.has_reference and workload.flops_per_unit() / 3 * spec.global_batch * steps <= AFFORDABLE


def call_on_new_batches(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does a call on batches after those of the blocks make the updates that NumPy makes?"""
    spec, workload, program = context.spec, context.job.workload, context.program
    steps = spec.steps_per_call
    known = {"deep": workload.normalizes, "steps": steps}
    tolerance = further_update.tolerance_of(spec.judged_precision, spec.optimizer, **known)
    if _moments_of(context) is None or not affordable(context, steps=steps) or tolerance is None:
        return

    def call(attempt: int) -> list[Check]:
        before, made = context.state(), context.made.steps
        first = spec.curve_steps + len(resident) + attempt * steps
        make_steps(program, [place(context, number) for number in range(first, first + steps)])
        program.sync()
        context.made(steps)
        after = context.state()
        if context.draft.rank:
            return []
        right = _computed(context, before, range(first, first + steps), made)
        return [further_update.of_parameters("update on new batches", right, after, tolerance)]

    yield from checks_of_calls(context, "new-batches", call)


def further_call(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does a call on the batches of the blocks make the updates that NumPy makes?

    Each time, the call comes after one from where the blocks ended. A program that keeps older weights than those of
    its state would otherwise have the initial ones by the second time.

    Where NumPy cannot afford the updates: does the program decay the weights?
    """
    spec, workload = context.spec, context.job.workload
    moments_of = _moments_of(context)
    steps = spec.steps_per_call
    with_gradients = affordable(context, steps=steps)
    if moments_of is None or not (
        with_gradients or without_gradients.shows_decay(workload, spec.optimizer, steps=steps)
    ):
        return
    ended, made = context.state(), context.made.steps
    if with_gradients:  # it is loaded again
        ended = copied(ended)
    start = context.agree.arrays("further-call", _initial_with_optimizer(context, ended))
    by_direction = further_direction.judges(spec.judged_precision, deep=workload.normalizes)
    rounding = spec.judged_precision if by_direction else None

    def call(attempt: int) -> list[Check]:
        numbers = [(attempt + number) % len(resident) for number in range(steps)]
        placed = [resident[number] for number in numbers]
        if attempt:
            _called(context, context.agree.arrays(f"ended-{attempt}", ended), placed)
        after = _called(context, start, placed)
        if context.draft.rank:
            return []
        if with_gradients:
            own = [spec.curve_steps + number for number in numbers]
            return _compare(context, _computed(context, start, own, made, rounding=rounding), after)
        known = {"params": context.job.params, "moments": moments_of(start, workload), "found": after, "made": made}
        found = without_gradients.decay(workload, spec.optimizer, **known, precision=spec.precision)
        return [] if found is None else [found]

    checks = checks_of_calls(context, "further-call", call, attempts=further_update.ATTEMPTS if with_gradients else 1)
    context.made(steps)
    yield from checks


def statistics_kept(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """How much of its running statistics does a call keep? Two calls on the same batches, from the initial weights.

    The one set of a parameter server moves with each worker's push, which come in turn here.
    """
    spec = context.spec
    if not context.job.workload.normalizes:
        return
    start = initial_state(context)
    other = {name: array + 1.0 if name.startswith("running/") else array for name, array in start.items()}
    placed = [resident[number % len(resident)] for number in range(spec.steps_per_call)]
    found = [_called(context, state, placed) for state in (start, other)]
    if context.draft.rank == 0:
        pushes = spec.devices if hasattr(context.program, "step_in_turn") else 1
        known = {"steps": spec.steps_per_call * pushes, "precision": spec.precision}
        yield without_gradients.kept_statistics((start, other), (found[0], found[1]), **known)


def checks_of_calls(
    context: Context, name: str, call: Callable[[int], list[Check]], *, attempts: int = further_update.ATTEMPTS
) -> list[Check]:
    """Make calls until further_update.PASSES of them have passed on rank 0, or can no longer pass; of fewer `attempts`,
    all must. Returns the checks of the last call, which decides. A collective.

    One call may fail by its rounding. And one may pass by its batch, where a program does less on others.
    """
    wanted, checks = min(further_update.PASSES, attempts), []
    passed: list[bool] = []
    for attempt in range(attempts):
        checks = call(attempt)
        passed.append(bool(context.agree.on(f"{name}-{attempt}", float(all(check.passed for check in checks)))))
        if passed.count(True) == wanted or passed.count(False) > attempts - wanted:
            break
    return checks


def _called(context: Context, start: Arrays, placed: Sequence[Any]) -> Arrays:
    """The state after one call from the state `start`, on rank 0. A collective."""
    load(context, start)
    make_steps_in_turn(context.program, placed)
    context.program.sync()
    return context.state()


def _initial_with_optimizer(context: Context, state: Arrays) -> Arrays:
    """The initial weights and running statistics, with the moments and counts of a state.

    Without the running statistics that each device has for itself: they begin anew, too.
    """
    kept = {
        name: array
        for name, array in state.items()
        if name.startswith("optimizer/") and not name.startswith("optimizer/running/")
    }
    return initial_state(context) | kept


def _moments_of(context: Context) -> Callable[[Arrays, Workload], Moments] | None:
    """What finds an optimizer's moments in a state. None if nothing does, or if no one history of updates is right."""
    module = optional_module(context.order.package, "moments")
    return module.moments if module is not None and context.spec.algorithm == "synchronous" else None


def _computed(
    context: Context, start: Arrays, numbers: Iterable[int], made: int, *, rounding: Precision | None = None
) -> further_update.Right:
    """What NumPy makes of the state `start`, after `made` updates, with the batches of these numbers. `rounding`: as in
    further_update.compute."""
    spec, workload, moments_of = context.spec, context.job.workload, _moments_of(context)
    assert moments_of is not None
    params = {name: start[f"model/{name}"] for name in context.job.params}
    batches = [context.batches.batch(number, spec.global_batch) for number in numbers]
    groups = normalization(spec, spec.options)
    known = {"groups": groups, "made": made}
    known["by_winograd"] = winograd.may_compute(context.job.world.platform, spec.judged_precision)
    moments = moments_of(start, workload)
    return further_update.compute(workload, spec.optimizer, params, moments, batches, rounding=rounding, **known)


def _compare(context: Context, right: further_update.Right, after: Arrays) -> list[Check]:
    """The state after a call from the initial weights, on rank 0."""
    spec, job, moments_of = context.spec, context.job, _moments_of(context)
    assert moments_of is not None
    kept: StatisticsOf | None = getattr(context.program, "statistics_of", "all") if job.workload.normalizes else None
    known = {"tolerances": spec.judged_precision, "statistics_of": kept, "updates": job.statistics_updates}
    known["moments"] = moments_of(after, job.workload)
    return list(further_update.compare(right, after, precision=spec.precision, **known))
