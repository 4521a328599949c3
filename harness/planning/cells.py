"""The cells of one strategy of one framework, on one workload and one track."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from harness.planning import request_checks, skip_reasons, step_counts, strategy_options, track_settings
from harness.planning.judges import check_trainable
from harness.planning.parity_phase import plan_parity
from harness.planning.plan import Planned
from harness.planning.run_request import Request
from harness.planning.scope import Scope
from harness.spec import (
    BatchGrowth,
    FrameworkSpec,
    Normalization,
    OptimizerSpec,
    SettingCell,
    StrategySpec,
    Track,
    TrainingSpec,
    TrialSpec,
    optimizers,
    run_options,
)
from harness.spec.errors import UsageError
from harness.spec.partition import CannotBeCut
from harness.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What the cells made here share. `strategy` has the default options of the track. `has_model`: whether the
    framework has a model of the workload. `held_off`: settings that stay off, unless the request names them."""

    workload: Workload
    framework: FrameworkSpec
    strategy: StrategySpec
    track: Track
    has_model: bool = True
    held_off: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One cell's devices, its global batch, and how many parts the strategy cuts that batch into.

    `parts` are devices times accumulation steps under data parallelism, else the accumulation steps alone.
    """

    devices: int
    global_batch: int
    batch_growth: BatchGrowth
    parts: int


def make_cells(combination: Combination, scope: Scope, *, unavailable: str) -> list[Planned]:
    """One cell for each number of devices, combination of option values, and number of loader workers.

    `unavailable`: why the framework cannot be used here, or "". Raises UsageError where the user asked for a cell that
    cannot be made; in a matrix of everything such a cell is skipped.
    """
    strategy, workload = combination.strategy, combination.workload
    counts = (1,) if strategy.parallelism == "none" else scope.device_counts
    optimizer = optimizers.parse(scope.request.optimizer, workload.optimizer)
    cells = []
    for devices, chosen in itertools.product(counts, strategy_options.combinations(scope.request, strategy)):
        shape = _shape(combination, scope.request, devices)
        options, impossible = _options(combination, scope.request, shape, chosen)
        spec = _trial(combination, scope, shape, options=options, optimizer=optimizer)
        reason = _why_skipped(spec, combination, scope, impossible)
        for training in _trainings(combination, scope, shape):
            cell = Planned(spec=replace(spec, training=training))
            if reason:
                cell = replace(cell, status="skipped", reason=reason)
            elif unavailable:
                cell = replace(cell, status="unavailable", reason=unavailable)
            cells.append(cell)
    return cells


def _shape(combination: Combination, request: Request, devices: int) -> Shape:
    data_parallel = combination.strategy.parallelism == "data"
    workload = combination.workload
    per_device = workload.batch_per_device and data_parallel
    own_batch = workload.global_batch * (devices if per_device else 1)
    return Shape(
        devices=devices,
        global_batch=request.global_batch or own_batch,
        batch_growth="per_device" if per_device and not request.global_batch else "fixed",
        parts=request.accumulation_steps * (devices if data_parallel else 1),
    )


def _options(
    combination: Combination, request: Request, shape: Shape, chosen: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """The cell's options, and why there can be no such cell, or "". Raises UsageError where the user asked for it."""
    strategy, workload = combination.strategy, combination.workload
    try:
        if strategy.parallelism in ("data", "none"):
            _check_divisible(workload, request, shape)
        options = strategy_options.resolve(strategy, workload, chosen, devices=shape.devices, batch=shape.global_batch)
        return options, ""
    except CannotBeCut as error:
        if not request.names_one_strategy:
            return strategy_options.without_replaced(strategy, chosen), str(error)
        raise UsageError(f"--strategy {strategy.name}: {workload.title}: {error}") from error
    except UsageError as error:
        if strategy.parallelism == "data":
            asked_for = (request.devices or request.global_batch) and "all" not in request.workloads
        else:
            asked_for = strategy.name in request.strategies
        if asked_for or chosen:
            raise
        return strategy.defaults | chosen, str(error)


def _check_divisible(workload: Workload, request: Request, shape: Shape) -> None:
    if shape.global_batch % shape.parts == 0:
        return
    devices = f"{shape.devices} device{'s' * (shape.devices != 1)}"
    steps = f" × {request.accumulation_steps} accumulation steps" if request.accumulation_steps > 1 else ""
    raise UsageError(
        f"global batch {shape.global_batch} of {workload.name} is not divisible by {shape.parts} "
        f"({devices}{steps}): choose a --global-batch that is a multiple of {shape.parts}, or other --devices"
        + (" or --accumulation-steps" if steps else "")
    )


def _trial(
    combination: Combination,
    scope: Scope,
    shape: Shape,
    *,
    options: dict[str, Any],
    optimizer: OptimizerSpec,
) -> TrialSpec:
    """The first launch of a cell. Raises UsageError for a setting that the cell cannot have."""
    request, workload, strategy = scope.request, combination.workload, combination.strategy
    if request.learning_rate_scaling == "linear" and strategy.parallelism == "data":
        optimizer = optimizers.scaled(optimizer, shape.devices)
    (normalization, _), precision = skip_reasons.normalization(strategy, scope), scope.precision_of(combination.track)
    known = {"workload": workload.name, "normalizes": workload.normalizes, "platform": scope.platform}
    cell = SettingCell(options=options, optimizer=optimizer, precision=precision, **known)
    settings, chosen_settings = _settings(combination, scope, cell, normalization)
    unit = shape.parts if strategy.parallelism == "data" else math.lcm(shape.parts, shape.devices)
    parity, changed_in_parity = plan_parity(strategy, workload, options, global_batch=shape.global_batch, unit=unit)
    return TrialSpec(
        framework=combination.framework.name,
        workload=workload.name,
        size=workload.size,
        strategy=strategy.name,
        options=options,
        roles=strategy.roles(options),
        changed_in_parity=changed_in_parity,
        platform=scope.platform,
        devices=shape.devices,
        global_batch=shape.global_batch,
        batch_growth=shape.batch_growth,
        track=combination.track,
        settings=settings,
        chosen_settings=chosen_settings,
        precision=precision,
        optimizer=optimizer,
        seed=request.seed,
        variant=_variant(strategy_options.shown(options, request, strategy), chosen_settings, request),
        algorithm=strategy.algorithm,
        normalization=normalization,
        tolerances=strategy_options.tolerances(strategy, options),
        parity_steps=step_counts.parity_steps(parity.steps, request),
        parity_batch=parity.parity_batch,
        **_limits(scope, track_settings.compile_seconds(combination.framework, settings)),
        **step_counts.timing_phase(scope, workload),
        **run_options.values(request),
    )


def _settings(
    combination: Combination, scope: Scope, cell: SettingCell, normalization: Normalization
) -> tuple[dict[str, bool], dict[str, bool]]:
    """As track_settings.of_cell. Raises UsageError for a setting that the cell cannot have."""
    known = {"strategy": combination.strategy, "workload": combination.workload}
    resolved = partial(
        track_settings.resolve,
        combination.framework,
        combination.strategy,
        combination.track,
        not_applicable=partial(track_settings.not_applicable, cell=cell, normalization=normalization, **known),
        platform=scope.platform,
    )
    return track_settings.of_cell(resolved, scope.request, held_off=combination.held_off)


def _limits(scope: Scope, compile_seconds: float) -> dict[str, float]:
    """How long a phase may take, and how long without progress. What the user sets, no setting prolongs."""
    longer = compile_seconds if scope.request.timeout_seconds is None else 0.0
    stall = request_checks.stall_seconds(scope.request)
    return {"timeout_seconds": scope.timeout_seconds + longer, "stall_seconds": stall + longer}


def _variant(options: Mapping[str, Any], settings: Mapping[str, bool], request: Request) -> str:
    """What tells a cell from the others of its strategy, in words: options, a swept batch, run options, settings."""
    batch = {"global_batch": request.global_batch} if request.global_batches else {}
    shown = {**options, **batch, **run_options.chosen(request)}
    shown |= {name: str(on).lower() for name, on in settings.items()}
    return ", ".join(f"{name}={value}" for name, value in sorted(shown.items(), reverse=True))


def _why_skipped(spec: TrialSpec, combination: Combination, scope: Scope, impossible: str) -> str:
    """Why this cell will not run, or "". A missing model comes first: nothing else could help then."""
    framework, workload = combination.framework, combination.workload
    if not combination.has_model:
        return skip_reasons.no_model(framework, workload.name)
    _, normalization_reason = skip_reasons.normalization(combination.strategy, scope)
    reason = impossible or skip_reasons.why_skipped(spec, framework, combination.strategy, workload)
    return reason or (normalization_reason if workload.normalizes else "")


def _trainings(combination: Combination, scope: Scope, shape: Shape) -> list[TrainingSpec] | list[None]:
    """How `train` trains a cell, once for each number of loader workers. Under `run` there is one cell, without."""
    asked = scope.request.training
    if asked is None:
        return [None]
    check_trainable(combination.workload)
    unit = _batch_unit(combination.strategy, shape)
    return [
        request_checks.training_of(
            combination.workload, asked, batch_unit=unit, workers=count, init_from=scope.init_from
        )
        for count in dict.fromkeys(asked.workers)
    ]


def _batch_unit(strategy: StrategySpec, shape: Shape) -> int:
    """What the size of a training batch must be a multiple of; 0 if every batch must have the size of the first."""
    if strategy.parallelism in ("data", "none"):
        return shape.parts
    return 0 if strategy.fixed_batch else 1
