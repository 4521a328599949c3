"""What a cell's track makes of a strategy: its default options, and which of the framework's settings are on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from harness.planning.run_request import Request
from harness.spec import (
    FrameworkSpec,
    Normalization,
    Platform,
    Setting,
    SettingCell,
    StrategySpec,
    Track,
    TrialSpec,
    obstacle_in,
    registry,
)
from harness.spec.errors import UsageError
from harness.workloads import Workload

NEEDS_GPUS = "needs GPUs"  # so no cell on CPU devices can have the setting


def strategy_on(strategy: StrategySpec, track: Track) -> StrategySpec:
    """The strategy with the default options that it has on this track."""
    tuned = strategy.tuned if track == "tuned" else {}
    options = tuple(replace(option, default=tuned.get(option.name, option.default)) for option in strategy.options)
    return replace(strategy, options=options)


def rungs(framework: FrameworkSpec, platform: Platform) -> list[tuple[str, ...]]:
    """For each rung of --track ladder, from none to all of the tuned track's settings: those that are held off."""
    tuned = [setting for setting in framework.settings if platform in setting.tuned_on]
    named = [setting.rung or setting.name for setting in tuned]
    order = list(dict.fromkeys(named))
    return [
        tuple(s.name for s, rung in zip(tuned, named, strict=True) if order.index(rung) >= height)
        for height in range(len(order) + 1)
    ]


def of_cell(
    resolved: Callable[[Request], dict[str, bool]], request: Request, *, held_off: tuple[str, ...]
) -> tuple[dict[str, bool], dict[str, bool]]:
    """All settings of a cell, and those of them that the request or a rung of the ladder makes other than the track.

    `resolved`: `resolve`, for the cell. `held_off`: those that the rung turns off, unless the request names them.
    """
    settings = resolved(request)
    settings |= dict.fromkeys((name for name in held_off if name not in request.settings), False)
    own = resolved(replace(request, settings={}))
    asked = (*held_off, *request.settings)
    return settings, {name: on for name, on in settings.items() if name in asked and on != own[name]}


def resolve(
    framework: FrameworkSpec,
    strategy: StrategySpec,
    track: Track,
    request: Request,
    not_applicable: Callable[[Setting], str],
    *,
    platform: Platform,
) -> dict[str, bool]:
    """All settings of a framework, as a cell has them: as requested, else as the strategy and track define them.

    `not_applicable`: why a setting cannot be on in this cell, or "". Raises UsageError if the user asks for such a
    setting by name. In a matrix of all strategies it stays off instead, unless no strategy can have it.
    """
    resolved = {}
    for setting in framework.settings:
        reason, advice = not_applicable(setting), "leave it out"
        if not reason:
            reason, advice = _effect_of_others(setting, resolved)
        if track == "tuned":
            on = strategy.tuned.get(setting.name, platform in setting.tuned_on)
        else:
            on = platform == "gpu" and setting.name in strategy.by_default
        if setting.name in request.settings:
            on = request.settings[setting.name] == "true"
            if on and reason and ("all" not in request.strategies or reason == NEEDS_GPUS):
                at = f"{framework.title} {strategy.name}"
                raise UsageError(f"--setting {setting.name}=true: {at}: {reason}; {advice}")
        resolved[setting.name] = on and not reason
    return resolved


def _effect_of_others(setting: Setting, settings: Mapping[str, bool]) -> tuple[str, str]:
    """Why a setting does nothing beside these, and what to do about it; or ("", "")."""
    if setting.requires and not settings.get(setting.requires):
        return f"does nothing without {setting.requires}", f"set {setting.requires}=true as well, or leave it out"
    if setting.replaced_by and settings.get(setting.replaced_by):
        return f"does nothing with {setting.replaced_by}", f"set {setting.replaced_by}=false as well, or leave it out"
    return "", ""


def why_nowhere(name: str, specs: Sequence[TrialSpec]) -> str:
    """Why none of these cells has a setting, and what to do about it."""
    found = {
        _effect_of_others(setting, spec.settings)
        for spec in specs
        for setting in registry.framework(spec.framework).settings
        if setting.name == name
    }
    reason, advice = found.pop() if len(found) == 1 else ("", "")
    if reason:
        return f"{reason}; {advice}"
    names = ", ".join(dict.fromkeys(spec.workload for spec in specs))
    tracks = " and ".join(dict.fromkeys(spec.track for spec in specs))
    return f"no cell of {names} on the track {tracks} can have it; leave it out (`list settings` says what each is for)"


def compile_seconds(framework: FrameworkSpec, settings: Mapping[str, bool]) -> float:
    """How much longer a large network compiles with these settings."""
    return sum(setting.compile_seconds for setting in framework.settings if settings.get(setting.name))


def not_applicable(
    setting: Setting,
    *,
    strategy: StrategySpec,
    workload: Workload,
    cell: SettingCell,
    normalization: Normalization,
) -> str:
    """Why a setting must be off in a cell, or ""."""
    if setting.needs_gpu and cell.platform == "cpu":
        return NEEDS_GPUS
    if setting.strategies and strategy.name not in setting.strategies:
        return f"is only for {', '.join(setting.strategies)}"
    if reason := obstacle_in(cell, setting.obstacle):
        return reason
    across_devices = normalization == "global" and strategy.parallelism == "data" and workload.normalizes
    if not setting.synchronized and across_devices:
        return "does not work with BatchNorm that communicates between devices"
    return strategy.obstacles(cell).get(setting.name, "")
