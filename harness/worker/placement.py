"""Inspections of where things lie: parameters, optimizer state and the batch, by device."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any

from harness.gate import crossing, placement, replicas
from harness.gate.read_program import RunsSomethingElse
from harness.spec import Check, DeviceShare, Span
from harness.spec.checks import finding
from harness.worker.context import Context
from harness.worker.package_modules import optional_module

LEAD, LEAD_SECONDS = 2.0, 0.01  # a head start: so many times a traced step, and in addition
TRACES = 3  # at most, until one shows the right order


def exported_parameters(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Compare what the program exports with what lies on the devices of this process."""
    holdings = optional_module(context.order.package, "holdings")
    if holdings is None:
        return
    context.program.sync()
    context.agree.barrier()  # no rank updates shared parameters any more
    exported = context.replicas()
    held = holdings.parameters(context.program)
    context.agree.barrier()
    shapes = {parameter.name: parameter.shape for parameter in context.job.workload.parameters()}
    yield replicas.exported_as_held(exported, held, shapes=shapes)


def devices_and_traffic(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Compare what the devices hold, take and send in a step with the manifest. Notes what was found.

    It makes steps: one, or as many as there are between two exchanges or in one call. For a pipeline on GPUs it makes
    up to three more.
    """
    holdings = optional_module(context.order.package, "holdings")
    if holdings is None:
        return
    spec = context.spec
    count = max(spec.exchange_interval, spec.steps_per_call)
    context.agree.barrier()
    try:
        observed = holdings.observe(context.program, list(islice(cycle(resident), count)))
    except RunsSomethingElse as error:
        context.program.sync()
        context.made(count)
        context.agree.barrier()
        yield finding("devices at work", str(error))
        return
    context.program.sync()
    context.made(observed.steps)
    context.agree.barrier()
    context.draft.note_timing(devices=observed.devices, crossed=observed.crossed)
    cell = cell_of(context)
    yield from placement.check(observed.devices, cell)
    yield from crossing.check(observed.crossed, observed.devices, cell)
    spans = order_of_stages(context, resident[0], cell, observed.devices)
    yield from crossing.check_order(spans, observed.devices, cell)


def order_of_stages(
    context: Context, placed: Any, cell: placement.Cell, found: Sequence[DeviceShare]
) -> Sequence[Span]:
    """When the stages of a pipeline in one process worked, in a step whose first micro-batches were launched early.

    Empty in launches that trace nothing. A small network's kernels are over before Python has launched those of the
    next stage. So GPUs get another traced step, with a head start for Python that is longer than the first one took: it
    launches as much of the step as their queues take. They need none if what was `found` on them tells the order.

    The clocks of two GPUs are known to tens of microseconds, which may be longer than a stage takes, and to less while
    other programs use the GPUs. So a step that seems to be in a wrong order is traced again. A program that waits is
    late in each of them.
    """
    spans = context.draft.timing.spans
    known = any(share.order for share in found)
    if known or not spans or cell.processes > 1 or context.spec.platform == "cpu" or not crossing.has_order(cell):
        return spans
    program: Any = context.program
    head_start = LEAD * max(span.end for span in spans) + LEAD_SECONDS
    for _ in range(TRACES):
        context.made(1)
        spans = program.trace(placed, head_start=head_start)
        if all(check.passed for check in crossing.check_order(spans, found, cell)):
            break
    return spans


def cell_of(context: Context) -> placement.Cell:
    """What the rules need to know of this rank."""
    manifest = importlib.import_module(f"{context.order.package}.manifest").FRAMEWORK
    targets = context.batches.batch(0, 1, dtype=context.dtype)["y"]
    return placement.Cell(
        strategy=manifest.strategy(context.spec.strategy),
        spec=context.spec,
        workload=context.job.workload,
        rank=context.job.world.rank,
        processes=context.job.world.processes,
        cut=context.draft.answer.cut,
        target_numbers=targets.size,
        labels=targets.dtype.kind == "i",
    )
