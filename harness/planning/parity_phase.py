"""The parity phase of a cell: how many steps of how many samples, and which options change for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.planning import strategy_options
from harness.spec import AVERAGINGS_IN_PARITY, ParityPhase, StrategySpec
from harness.workloads import Workload

LOCAL_STEPS = 2 * AVERAGINGS_IN_PARITY  # two between averagings: with one, nothing would be local


def plan_parity(
    strategy: StrategySpec, workload: Workload, options: Mapping[str, Any], *, global_batch: int, unit: int
) -> tuple[ParityPhase, dict[str, Any]]:
    """The parity phase of a cell, and the options that have another value in it, with that value.

    Its global batch is small: a multiple of `unit`, which can also be cut into equal micro-batches. Where workers train
    on their own, its last step ends with an averaging.
    """
    unit = math.lcm(unit, strategy_options.by_role(strategy, options).get("micro_batches", 1))
    phase = ParityPhase(
        global_batch=global_batch,
        parity_batch=unit * math.ceil(min(workload.parity_batch, global_batch) / unit),
        steps=LOCAL_STEPS if strategy.algorithm == "local" else workload.parity_steps,
    )
    in_parity = {name: strategy.option(name).parity_value(value, phase) for name, value in options.items()}
    changed = {name: value for name, value in in_parity.items() if value != options[name]}
    interval = strategy_options.by_role(strategy, in_parity).get("averaging_interval", 1)
    return replace(phase, steps=interval * math.ceil(phase.steps / interval)), changed
