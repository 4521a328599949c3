"""From a request to a plan: the matrix of all cells, launched in an order that treats them alike. Launches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness import workloads
from harness.datasets.check import SOURCES
from harness.machine.devices import Machine
from harness.planning import request_checks, track_settings
from harness.planning.cells import Combination, make_cells
from harness.planning.hosts import counted, hosts_of, spread
from harness.planning.interpreters import check_interpreter_names, choose_interpreters, modules_for_checkpoints
from harness.planning.judges import check_judges
from harness.planning.launch_order import interleave
from harness.planning.plan import Plan, Planned
from harness.planning.presets import PRESETS
from harness.planning.run_request import Request
from harness.planning.scope import Scope, make_scope
from harness.spec import FrameworkSpec, StrategySpec, Track, TrialSpec, registry, workload_packages
from harness.spec.errors import UsageError
from harness.workloads import Workload


def make_plan(request: Request, machine: Machine) -> Plan:
    """Every cell that the request names, launched as often as it says.

    Launches of all cells are interleaved: each round runs every cell once, in a seeded random order, so that a machine
    whose speed drifts slows all cells alike. Raises UsageError for a request that cannot be met, MachineUnfit for a
    broken driver.
    """
    plan = plan_cells(request, machine)
    return replace(plan, trials=interleave(plan.trials, plan.launches))


def plan_cells(request: Request, machine: Machine) -> Plan:
    """The same plan with the first launch of each cell alone, in the order of the matrix. Raises as `make_plan`."""
    request = counted(request)
    names = request_checks.chosen_frameworks(request.frameworks)
    workload_names = workload_packages.expand(request.workloads)
    scope = make_scope(request, machine)
    frameworks = [registry.framework(name) for name in names]
    request_checks.check_strategies(request, frameworks)
    request_checks.check_options(request, frameworks)
    request_checks.check_settings(request, frameworks)
    check_interpreter_names(request.interpreters)
    interpreters = choose_interpreters(request, frameworks)
    chosen = request_checks.chosen_workloads(workload_names, request, scope.platform)
    cells = _cells(chosen, frameworks, scope, interpreters)
    if not cells:
        raise UsageError("nothing to do: none of the chosen frameworks has one of the chosen strategies")
    _check_effect(request, [cell.spec for cell in cells])
    check_judges(cells)
    launches = _launches(request, scope.preset)
    if PRESETS[scope.preset]["twin"] and launches > 1 and request.twin and not request.training:
        cells += _twin(cells)
    return Plan(
        trials=tuple(cells),
        platform=scope.platform,
        preset=scope.preset,
        interpreters=interpreters,
        compile_cache=request_checks.compile_cache(request),
        launches=launches,
        where=hosts_of(request),
    )


def _launches(request: Request, preset: str) -> int:
    """How often each cell is launched; under `train`, how many trainings it has."""
    launches = request.launches or PRESETS[preset]["launches"]
    if request.training:
        return request.training.seeds or launches
    return launches


def _twin(cells: Sequence[Planned]) -> list[Planned]:
    """A second cell that is the same as a runnable `single`, or without one as the first runnable cell. Of several
    singles, it is the one with the least to compile, since each round repeats it. None if two of the cells are one
    program anyway, as those of a cell whose settings are the same on both tracks."""
    runnable = [cell for cell in cells if cell.status == "planned"]
    if len({cell.spec.program for cell in runnable}) < len(runnable):
        return []
    singles = sorted((cell for cell in runnable if cell.spec.strategy == "single"), key=_compile_seconds)
    return [replace(cell, spec=replace(cell.spec, twin=True)) for cell in (*singles, *runnable)[:1]]


def _compile_seconds(cell: Planned) -> float:
    """How much longer than by its defaults a cell takes to compile."""
    return track_settings.compile_seconds(registry.framework(cell.spec.framework), cell.spec.settings)


def _cells(
    chosen: Sequence[Workload], frameworks: Sequence[FrameworkSpec], scope: Scope, interpreters: Mapping[str, str]
) -> list[Planned]:
    """The cells of every chosen strategy on every workload and track."""
    modules = modules_for_checkpoints([scope.request.training])
    unavailable = {spec.name: registry.missing(spec, interpreters[spec.name], beside=modules) for spec in frameworks}
    cells: list[Planned] = []
    for workload in chosen:
        for framework in frameworks:
            has_model = registry.has_model(framework, workload.name)
            for strategy in framework.strategies:
                if not request_checks.is_chosen(strategy, scope.request):
                    continue
                cells += _of_strategy(
                    workload, framework, strategy, scope, has_model=has_model, unavailable=unavailable[framework.name]
                )
    return cells


def _of_strategy(
    workload: Workload,
    framework: FrameworkSpec,
    strategy: StrategySpec,
    scope: Scope,
    *,
    has_model: bool,
    unavailable: str,
) -> list[Planned]:
    """The cells of a strategy on every track, then those of the ladder that are not among them.

    A ladder has its settings at one step per call. With --steps-per-call, all of them together are its last rung.
    """

    def cells_on(track: Track, held_off: tuple[str, ...] = (), scope: Scope = scope) -> list[Planned]:
        combination = Combination(
            workload=workload,
            framework=framework,
            strategy=track_settings.strategy_on(strategy, track),
            track=track,
            has_model=has_model,
            held_off=held_off,
        )
        asked = scope.request
        batches = [replace(asked, global_batch=batch) for batch in asked.global_batches] or [asked]
        scopes = [replace(scope, request=request) for request in batches]
        made = [cell for each in scopes for cell in make_cells(combination, each, unavailable=unavailable)]
        return spread(made, strategy, scope.spread)

    cells = [cell for track in scope.tracks for cell in cells_on(track)]
    ladder: list[Planned] = []
    for held_off, of_rung in _rungs(framework, scope) if scope.ladder else ():
        seen = [_without_names(cell) for cell in (*cells, *ladder)]
        ladder += [cell for cell in cells_on("tuned", held_off, of_rung) if _without_names(cell) not in seen]
    return cells + ladder[::-1]


def _rungs(framework: FrameworkSpec, scope: Scope) -> list[tuple[tuple[str, ...], Scope]]:
    """From the last rung to the first: the settings that are held off, and the scope."""
    one = replace(scope, request=replace(scope.request, steps_per_call=1))
    several = [((), scope)] if scope.request.steps_per_call > 1 else []
    return [*several, *((held_off, one) for held_off in reversed(track_settings.rungs(framework, scope.platform)))]


def _without_names(cell: Planned) -> TrialSpec:
    """What a cell does, without how it was asked for: a rung may change nothing for a strategy."""
    return replace(cell.spec, chosen_settings={}, variant="")


def _check_effect(request: Request, specs: Sequence[TrialSpec]) -> None:
    """Raises UsageError for a flag that changes none of the cells: the user meant something else."""
    names = ", ".join(dict.fromkeys(spec.workload for spec in specs))
    if request.learning_rate_scaling == "linear" and all(spec.optimizer.scaled_by == 1 for spec in specs):
        raise UsageError(
            "--learning-rate-scaling linear: no cell here spreads its batch over several devices; leave it out"
        )
    if request.batch_norm and not any(workloads.get(spec.workload, spec.size).normalizes for spec in specs):
        raise UsageError(f"--batch-norm {request.batch_norm}: {names} has no BatchNorm; leave it out")
    for name, value in request.settings.items():
        if value == "true" and not any(spec.settings.get(name) for spec in specs):
            raise UsageError(f"--setting {name}=true: {track_settings.why_nowhere(name, specs)}")


def check_data(data: Path | None, plan: Plan) -> None:
    """Raises UsageError for a --data that is not a folder, that no workload uses, or that a workload lacks."""
    names = dict.fromkeys((trial.spec.workload, trial.spec.size) for trial in plan.trials)
    chosen = [workloads.get(*name) for name in names]
    if data is None:
        for workload in chosen:
            if workload.needs_data:
                raise UsageError(
                    f"{workload.name} {workload.size} needs --data DIR, a folder with {workload.needs_data}"
                )
        return
    if not any(workload.takes_data for workload in chosen):
        raise UsageError(f"--data {data}: {', '.join(name for name, _ in names)} uses no data files; leave it out")
    if not data.is_dir():
        raise UsageError(f"--data {data}: is not a folder; name the one with MNIST's or CIFAR-10's files; {SOURCES}")


def check_something_runs(plan: Plan) -> None:
    """Raises UsageError if all cells would be skipped."""
    if all(trial.status == "skipped" for trial in plan.trials):
        first = plan.trials[0]
        raise UsageError(f"nothing can run here: {first.spec.framework} {first.spec.strategy}: {first.reason}")
