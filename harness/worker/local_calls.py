"""The further calls of local training: each worker has weights and moments of its own, and NumPy has them from the
program's state. harness/gate/local_update.py compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from harness.gate import further_direction, further_update, local_update, winograd, without_gradients
from harness.gate.runs import normalization
from harness.spec import Check, Precision
from harness.spec.arrays import Arrays
from harness.spec.partition import shares
from harness.worker.context import Context
from harness.worker.further_call import affordable, checks_of_calls
from harness.worker.loading import load
from harness.worker.local_states import (
    all_like,
    initial_with_optimizers,
    is_of_all,
    own_states,
    prefix_of_workers,
    weights,
    workers,
)
from harness.worker.loss_curve import place

UNKNOWN = "not compared: its state does not say what each worker has (OF_WORKER in moments.py)"


def workers_call_on_new_batches(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does each worker make NumPy's update of its own weights, on batches after those of the blocks? And does a step
    that averages give NumPy's mean? If not, others are tried."""
    spec = context.spec
    known = {"deep": context.job.workload.normalizes, "steps": 1}
    tolerance = further_update.tolerance_of(spec.judged_precision, spec.optimizer, **known)
    if prefix_of_workers(context) is None or not affordable(context) or tolerance is None:
        return

    def call(attempt: int, averages: bool) -> list[Check]:
        _go_on(context, resident, averages)
        before, made = context.state(), context.made.steps
        number = spec.curve_steps + len(resident) + 2 * attempt + averages
        after = _after_step(context, place(context, number))
        context.made(1)
        if context.draft.rank:
            return []
        rights = _computed(context, before, number, made)
        known = {"averages": averages, "tolerances": spec.judged_precision}
        found = local_update.compare(rights, own_states(context, after), quantity="update on new batches", **known)
        return [check for check in found if check.quantity == "update on new batches"]

    for averages in (True,) if spec.exchange_interval == 1 else (False, True):
        yield from checks_of_calls(context, f"workers-new-{averages}", lambda attempt, it=averages: call(attempt, it))


def workers_further_call(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does each worker make NumPy's update from the initial weights, with the moments that it has now? If not, the next
    batch is tried. Where NumPy cannot afford them: does it decay the weights?"""
    spec, workload = context.spec, context.job.workload
    with_gradients = affordable(context)
    shows_decay = without_gradients.shows_decay(workload, spec.optimizer, steps=1)
    if prefix_of_workers(context) is None or not (with_gradients or shows_decay):
        return
    averages = spec.exchange_interval == 1
    _go_on(context, resident, averages)
    start, made = context.agree.arrays("workers-further-call", initial_with_optimizers(context)), context.made.steps
    by_direction = further_direction.judges(spec.judged_precision, deep=workload.normalizes)

    def call(attempt: int) -> list[Check]:
        number = attempt % len(resident)
        load(context, start)
        after = _after_step(context, resident[number])
        if context.draft.rank:
            return []
        found = own_states(context, after)
        if not with_gradients:
            known = {"averages": averages, "made": made, "precision": spec.precision}
            return local_update.decay(workload, spec.optimizer, workers(context, start), found, **known)
        rounding = spec.judged_precision if by_direction else None
        rights = _computed(context, start, spec.curve_steps + number, made, rounding=rounding)
        checks = local_update.compare(rights, found, averages=averages, tolerances=spec.judged_precision)
        return [*checks, *_statistics(context, rights, after)]

    attempts = further_update.ATTEMPTS if with_gradients else 1
    checks = checks_of_calls(context, "workers-further", call, attempts=attempts)
    context.made(1)
    yield from checks


def averaging(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Does an averaging give each worker the mean of what the workers would have had without it? If not, the next batch
    is tried."""
    spec, prefix = context.spec, prefix_of_workers(context)
    if spec.algorithm != "local":
        return
    if prefix is None:
        if context.draft.rank == 0:
            yield Check(quantity="averaging", error=0.0, tolerance=0.0, worst=UNKNOWN)
        return
    if spec.exchange_interval > 1:
        _go_on(context, resident, False)
    other = context.state()
    _go_on(context, resident, True)
    start = context.agree.arrays("averaging", context.state())
    counts = context.agree.arrays("averaging-counts", {name: other[name] for name in other if is_of_all(context, name)})

    def call(attempt: int) -> list[Check]:
        number = spec.curve_steps + attempt % len(resident)
        alone = _without_averaging(context, start, counts, number)
        load(context, start)
        found = _after_step(context, place(context, number))
        if context.draft.rank:
            return []
        return [local_update.averaging(weights(context, start), alone, weights(context, found))]

    checks = checks_of_calls(context, "workers-averaging", call)
    context.made(1)
    yield from checks


def _without_averaging(context: Context, start: Arrays, counts: Arrays, number: int) -> list[Arrays]:
    """Each worker's parameters, on rank 0, after a step with this batch from the state `start`, without an averaging.

    `counts`: what all workers have together at a step that does not average. Where each step averages, all workers make
    the step of each of them instead: the mean of equal weights is any of them. A collective.
    """
    if context.spec.exchange_interval > 1:
        load(context, start | counts)
        found = _after_step(context, place(context, number))
        return [] if context.draft.rank else weights(context, found)
    alone = []
    for worker in range(context.spec.devices):
        load(context, all_like(context, start, worker))
        batch = context.batches.batch(number, context.spec.global_batch, dtype=context.dtype)
        found = _after_step(context, context.program.place(_all_shares_like(context, batch, worker)))
        if context.draft.rank == 0:
            alone.append(weights(context, found)[worker])
    return alone


def _all_shares_like(context: Context, batch: Arrays, worker: int) -> Arrays:
    """The batch, in which all workers have the samples of one of them."""
    ranks, steps = context.spec.devices, context.spec.accumulation_steps
    parts = shares(batch, steps=steps, rank=worker, ranks=ranks)
    return {name: np.concatenate([part[name] for part in parts for _ in range(ranks)]) for name in batch}


def _go_on(context: Context, resident: Sequence[Any], averages: bool) -> None:
    """Make steps until the next one is one that averages, or one that does not."""
    interval = context.spec.exchange_interval
    while (context.made.steps % interval == interval - 1) != averages:
        context.program.step(resident[0])
        context.made(1)


def _after_step(context: Context, placed: Any) -> Arrays:
    """The state after one step, on rank 0. A collective."""
    context.program.step(placed)
    context.program.sync()
    return context.state()


def _computed(
    context: Context, state: Arrays, number: int, made: int, *, rounding: Precision | None = None
) -> list[further_update.Right]:
    """What NumPy makes of each worker in the state, after `made` updates, with the batch of this number."""
    spec, workload = context.spec, context.job.workload
    batch = context.batches.batch(number, spec.global_batch)
    known = {"groups": normalization(spec, spec.options), "accumulation_steps": spec.accumulation_steps, "made": made}
    known["by_winograd"] = winograd.may_compute(context.job.world.platform, spec.judged_precision)
    of_workers = workers(context, state)
    return local_update.compute(workload, spec.optimizer, of_workers, batch, rounding=rounding, **known)


def _statistics(context: Context, rights: Sequence[further_update.Right], after: Arrays) -> list[Check]:
    """BatchNorm's running statistics, which a state has as the mean over the workers. Not where a step moves them
    several times: then only their order says how far."""
    job = context.job
    if not job.workload.normalizes or job.statistics_updates > 1:
        return []
    known: Any = {"precision": context.spec.precision, "tolerances": context.spec.judged_precision}
    found = further_update.compare(local_update.mean_of(rights), after, statistics_of="all", **known)
    return [check for check in found if check.quantity == "further statistics"]
