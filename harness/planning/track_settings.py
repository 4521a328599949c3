"""What a cell's track makes of a strategy: its options, and which of the framework's settings are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.planning.run_request import Request
from harness.spec import FrameworkSpec, OptimizerSpec, Platform, Setting, StrategySpec, Track, optimizers
from harness.spec.errors import UsageError
from harness.workloads import Workload

NEEDS_GPUS = "needs GPUs"  # then no cell can have it


def strategy_on(strategy: StrategySpec, track: Track) -> StrategySpec:
    """The strategy with the defaults that its options have on this track."""
    tuned = strategy.tuned if track == "tuned" else {}
    own = {name: value for name, value in tuned.items() if name in strategy.options}
    return replace(strategy, options=strategy.options | own)


def resolve(
    framework: FrameworkSpec,
    strategy: StrategySpec,
    track: Track,
    request: Request,
    not_applicable: Callable[[Setting], str],
) -> dict[str, bool]:
    """All of a framework's settings as a cell has them: as asked for, else as strategy and track have them.

    `not_applicable`: why a setting cannot be on in this cell, or "". Raises UsageError if the user asks for such a
    setting by name; in a matrix of all strategies it stays off instead, unless no strategy can have it.
    """
    found = {}
    for setting in framework.settings:
        why = not_applicable(setting)
        on = strategy.tuned.get(setting.name, True) if track == "tuned" else False
        if setting.name in request.settings:
            on = request.settings[setting.name] == "true"
            if on and why and ("all" not in request.strategies or why == NEEDS_GPUS):
                raise UsageError(f"--setting {setting.name}=true: {strategy.name}: {why}; leave it out")
        found[setting.name] = on and not why
    return found


def not_applicable(
    setting: Setting,
    strategy: StrategySpec,
    workload: Workload,
    platform: Platform,
    optimizer: OptimizerSpec,
    norm: str,
) -> str:
    """Why a setting must be off in a cell, or ""."""
    if setting.needs_gpu and platform == "cpu":
        return NEEDS_GPUS
    if setting.strategies and strategy.name not in setting.strategies:
        return f"is for {', '.join(setting.strategies)} alone"
    if setting.constant_update and (optimizer.name != "sgd" or optimizers.scheduled(optimizer)):
        return "needs SGD at a rate that never changes, or what is captured would keep its first update's numbers"
    across = norm == "global" and strategy.parallelism == "data" and workload.normalizes
    if not setting.synchronized and across:
        return "cannot hold BatchNorm that communicates over devices"
    return strategy.without.get(setting.name, "")
