"""The parity phase of a cell: how many steps of how many samples, and which options change for it.

Options keep their meaning in it. A batch is cut into as many micro-batches as the timed one, and the last one is short
if it is short in the timed batch. Workers that train on their own meet after their own interval, if that is affordable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.planning import strategy_options
from harness.spec import AVERAGINGS_IN_PARITY, PUSHES_IN_PARITY, ParityPhase, StrategySpec
from harness.workloads import Workload

LOCAL_STEPS = 6
"""The steps of the parity phase where workers train on their own, unless their interval asks for more."""

MOST_LOCAL_STEPS = 1000
LOCAL_FLOPS = 5e11
"""They make more steps, to meet twice after their own interval, only up to this number, and only if NumPy trains with
at most this many operations: about what the costliest other reference takes (ResNet-50 at the tutorial's size)."""

DEEP_LOCAL_STEPS = 8
"""The same for networks with BatchNorm, which amplify rounding in every step (docs/parity.md)."""


def plan_parity(
    strategy: StrategySpec, workload: Workload, options: Mapping[str, Any], *, global_batch: int, unit: int
) -> tuple[ParityPhase, dict[str, Any]]:
    """The parity phase of a cell, and the options that have another value in it, with that value.

    Its global batch is small: a multiple of `unit`, or one that can be cut into the cell's micro-batches. Where workers
    train on their own, its last step ends with an averaging. Where they sum several gradients before they push, their
    buffers are not empty after it.
    """
    by_role = strategy_options.by_role(strategy, options)
    unit = math.lcm(unit, by_role.get("micro_batches", 1))
    batch = unit * math.ceil(min(workload.parity_batch, global_batch) / unit)
    if size := by_role.get("micro_batch_size"):
        batch = cut_alike(batch, global_batch=global_batch, size=size)
    steps = workload.parity_steps
    if strategy.algorithm == "local":
        steps = _local_steps(workload, batch, interval=by_role.get("averaging_interval", 1))
    if (interval := by_role.get("push_interval", 1)) > 1:
        steps = _push_steps(workload, batch, interval=interval)
    phase = ParityPhase(global_batch=global_batch, parity_batch=batch, steps=steps)
    in_parity = {name: strategy.option(name).parity_value(value, phase) for name, value in options.items()}
    changed = {name: value for name, value in in_parity.items() if value != options[name]}
    interval = strategy_options.by_role(strategy, in_parity).get("averaging_interval", 1)
    return replace(phase, steps=interval * math.ceil(phase.steps / interval)), changed


def cut_alike(batch: int, *, global_batch: int, size: int) -> int:
    """A batch near `batch` that can be cut as the global batch is by micro-batches of `size` samples.

    It has as many micro-batches, or as many as `batch` has room for. If the global batch ends with a short one, so does
    this batch: its last micro-batch has one sample less than the others.
    """
    if batch >= global_batch:
        return global_batch
    count, ends_short = math.ceil(global_batch / size), global_batch % size != 0
    if ends_short:
        count = min(count, max(2, (batch + 1) // 2))  # a short one is shorter than 2 samples or more
        return min(count * max(2, math.ceil(batch / count)) - 1, global_batch)
    count = min(count, batch)
    return count * math.ceil(batch / count)


def _local_steps(workload: Workload, batch: int, *, interval: int) -> int:
    """Enough steps for workers to meet AVERAGINGS_IN_PARITY times after their own interval, or LOCAL_STEPS if that
    would be too many."""
    wanted = max(LOCAL_STEPS, AVERAGINGS_IN_PARITY * interval)
    return wanted if _affordable(workload, batch, wanted) else LOCAL_STEPS


def _push_steps(workload: Workload, batch: int, *, interval: int) -> int:
    """Enough steps for each worker to push PUSHES_IN_PARITY times after its own interval, or LOCAL_STEPS if that would
    be too many; and one more if the last push would leave the buffers empty."""
    wanted = max(workload.parity_steps, PUSHES_IN_PARITY * interval + 1)
    wanted += wanted % interval == 0
    return wanted if _affordable(workload, batch, wanted) else LOCAL_STEPS + 1


def _affordable(workload: Workload, batch: int, steps: int) -> bool:
    """Whether the parity phase may make so many steps for the sake of an interval."""
    most = DEEP_LOCAL_STEPS if workload.normalizes else MOST_LOCAL_STEPS
    return steps <= most and steps * batch * workload.flops_per_unit() <= LOCAL_FLOPS
