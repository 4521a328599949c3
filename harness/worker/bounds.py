"""What simple programs reach on the devices, after the timed blocks, when the peak of memory has been noted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from harness.gate import timed_program
from harness.spec import Bounds, Check
from harness.worker.context import Context
from harness.worker.package_modules import optional_module


def speed(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Can the devices be as fast as the blocks say? Rank 0 answers for all: other ranks may only serve it.

    A rate that seems too low for the blocks is measured again, because an interruption lowers it as well.
    """
    spec, bounds = context.spec, optional_module(context.order.package, "bounds")
    if context.draft.rank or bounds is None:
        return
    step_seconds = context.draft.timing.fastest_step_seconds
    reached = spec.global_batch * context.job.workload.flops_per_unit() / step_seconds
    of_device, check = 0.0, None
    for _ in range(timed_program.ATTEMPTS):
        of_device = max(of_device, bounds.matrix_rate(context.job.world, spec.precision))
        check = timed_program.matrix_rate(spec.precision, reached=reached, possible=of_device * spec.devices)
        if check.passed:
            break
    assert check is not None
    context.draft.note_timing(bounds=Bounds(matrix_flops_per_second=of_device))
    yield check


def bandwidths(context: Context, resident: Sequence[Any]) -> Iterable[Check]:
    """Note the bandwidth of memory, and of the links between devices. No check is made of them."""
    world, bounds = context.job.world, optional_module(context.order.package, "bounds")
    if bounds is None:
        return ()
    context.program.sync()
    context.agree.barrier()  # other ranks on the same host may share its memory, and links are used by all together
    memory = None if world.rank else bounds.memory_rate(world)
    context.agree.barrier()
    links = bounds.link_rate(world, context.program)
    if world.rank == 0:
        found = context.draft.timing.bounds or Bounds()
        context.draft.note_timing(bounds=replace(found, memory_bytes_per_second=memory, links=links))
    return ()
