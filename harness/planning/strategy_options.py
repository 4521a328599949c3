"""The options of a strategy in one cell: typed, completed and checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from harness.planning.run_request import Request
from harness.spec import CellShape, Option, Role, StrategySpec, ToleranceSet, partition
from harness.spec.errors import UsageError, check_name
from harness.workloads import Workload


def combinations(request: Request, strategy: StrategySpec) -> list[dict[str, Any]]:
    """Every combination of the values that the request gives to this strategy's options. Raises UsageError."""
    values_by_name: dict[str, list[Any]] = {}
    for name, texts in request.options.items():
        if name in strategy.defaults:
            option = strategy.option(name)
            # Each value once: as numbers, 1 and 1.0 are the same.
            values_by_name[name] = list(dict.fromkeys(_typed(option, text) for text in texts))
    return [dict(zip(values_by_name, values, strict=True)) for values in itertools.product(*values_by_name.values())]


def _typed(option: Option, text: str) -> Any:
    if option.kind is bool:
        check_name(f"--option {option.name}:", text, ("true", "false"))
        return text == "true"
    try:
        return option.kind(text)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}[option.kind]
        raise UsageError(f"--option {option.name}={text}: must be {expected}") from None


def resolve(
    strategy: StrategySpec, workload: Workload, chosen: Mapping[str, Any], *, devices: int, batch: int
) -> dict[str, Any]:
    """The options of one cell, with the workload's defaults filled in.

    Raises CannotBeCut for more stages than the network has blocks, and UsageError for a bad value.
    """
    options = without_replaced(strategy, chosen)
    for name, value in options.items():
        _check_value(strategy.option(name), value)
    pieces = _micro_batches(strategy, options, workload, batch=batch)
    cell = CellShape(devices=devices, global_batch=batch, micro_batches=pieces)
    stages = devices
    for name, value in options.items():
        option = strategy.option(name)
        if option.not_applicable and (reason := option.not_applicable(value, cell)):
            raise UsageError(f"--option {name}={value}: {reason}")
        stages *= _stages_per_device(option, value, workload, devices=devices)
    for name, value in options.items():
        if strategy.option(name).role == "cut":
            options[name] = _resolve_cut(value, workload, stages)
    return options


def without_replaced(strategy: StrategySpec, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen values and the defaults of all other options. Of two options that replace each other, only one stays.

    Raises UsageError if both were chosen.
    """
    options = strategy.defaults | dict(chosen)
    for option in strategy.options:
        if not option.replaces:
            continue
        if option.name in chosen and option.replaces in chosen:
            both = " and ".join(f"--option {name}={chosen[name]}" for name in (option.name, option.replaces))
            raise UsageError(f"{both}: both say the same in different terms; give one of them")
        del options[option.replaces if option.name in chosen else option.name]
    return options


def _check_value(option: Option, value: Any) -> None:
    """Raises UsageError for a value that no cell can have."""
    if option.choices:
        check_name(f"--option {option.name}:", value, option.choices)
    if option.least is not None and not option.least <= value < math.inf:
        raise UsageError(f"--option {option.name}={value}: must be at least {option.least} and finite")
    if option.most is not None and value > option.most:
        raise UsageError(f"--option {option.name}={value}: must be at most {option.most:g}")


def _micro_batches(strategy: StrategySpec, options: Mapping[str, Any], workload: Workload, *, batch: int) -> int:
    """How many micro-batches a pipeline cuts its batch into; 1 without a pipeline.

    Raises UsageError if the batch cannot be cut as the options say.
    """
    names, values = strategy.roles(options), by_role(strategy, options)
    count, size = values.get("micro_batches"), values.get("micro_batch_size")
    where = f"{workload.name} {workload.size}"
    if size is not None:
        if not 1 <= size <= batch:
            raise UsageError(
                f"--option {names['micro_batch_size']}={size}: allowed are 1 to the global batch, {batch} in {where}"
            )
        return len(partition.micro_batches(batch, size))
    if count is not None and batch % count:
        raise UsageError(
            f"--option {names['micro_batches']}={count}: does not divide the global batch of {batch} in {where}; "
            "choose a divisor of it, or another --global-batch"
        )
    return count or 1


def _stages_per_device(option: Option, value: Any, workload: Workload, *, devices: int) -> int:
    """How many stages this value gives to each device. Raises UsageError if the network is too short for them."""
    count = option.stages_per_device.get(value, 1)
    if count > 1 and devices * count > len(workload.blocks):
        others = [choice for choice in option.choices if option.stages_per_device.get(choice, 1) < count]
        hint = f"choose {' or '.join(others)}, or fewer --devices" if others else "choose fewer --devices"
        raise UsageError(
            f"--option {option.name}={value}: {count} stages on each of {devices} devices make {devices * count}, and "
            f"the network has {len(workload.blocks)} blocks; {hint}"
        )
    return count


def _resolve_cut(cut: str, workload: Workload, stages: int) -> str:
    """Where the network is cut into stages. Raises CannotBeCut, or UsageError for a place where it cannot be cut."""
    partition.check_stages(stages, workload.blocks)
    found = cut or workload.usual_cut(stages)
    if found != "time":
        try:
            workload.cut_points(found, stages)
        except UsageError as error:
            whose = "--option" if cut else "its default"
            raise UsageError(f"{workload.title}: {whose} {error}") from error
    return found


def by_role(strategy: StrategySpec, options: Mapping[str, Any]) -> dict[Role, Any]:
    """The values of those options that have a role."""
    return {role: options[name] for role, name in strategy.roles(options).items()}


def tolerances(strategy: StrategySpec, options: Mapping[str, Any]) -> ToleranceSet:
    """The tolerances of the parity gate: larger ones where the value of an option needs them."""
    for name, value in options.items():
        larger = strategy.option(name).tolerances.get(value)
        if larger:
            return larger
    return "exact"


def are_whole(options: Mapping[str, Any], strategy: StrategySpec) -> bool:
    """Whether a planned cell has the options that the strategy has now.

    Of two options that replace each other one may be missing; a cell that was skipped unresolved has both.
    """
    known = strategy.defaults.keys()
    missing = known - options.keys()
    for option in strategy.options:
        pair = {option.name, option.replaces}
        if option.replaces and not pair <= missing:
            missing -= pair
    return options.keys() <= known and not missing


def shown(options: Mapping[str, Any], request: Request, strategy: StrategySpec) -> dict[str, Any]:
    """The options that tell a cell from others: those always shown, those not at their default, and those of which the
    request compares several values.

    An option that the workload sets has no value in a cell that was skipped before that, and is not shown there.
    """
    compared = {name for name, texts in request.options.items() if len(set(texts)) > 1}
    found = {name: (strategy.option(name), value) for name, value in options.items()}
    return {
        name: value
        for name, (option, value) in found.items()
        if name in compared or value != option.default or (option.always_shown and not option.is_set_by_workload)
    }
