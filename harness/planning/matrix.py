"""From a request to the ordered list of trials, and the cells that cannot run, with reasons. Launches nothing.

Long because every reason why a cell cannot run stands beside the making of cells.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness import workloads
from harness.machine.devices import Machine
from harness.planning import run_request, track_settings
from harness.planning.run_request import PRECISIONS, Request, TrainingRequest
from harness.spec import (
    LOCAL_STEPS_IN_PARITY,
    FrameworkSpec,
    Normalization,
    Platform,
    StrategySpec,
    ToleranceSet,
    Track,
    TrainingSpec,
    TrialSpec,
    optimizers,
    partition,
    registry,
)
from harness.spec.errors import UsageError, check_name
from harness.workloads import Workload

LOCAL_PARITY_STEPS = 3 * LOCAL_STEPS_IN_PARITY  # so that local training ends with a meeting, after several
ALWAYS_SHOWN = ("cut", "micro_batches", "schedule", "split_size")  # options without which a cell cannot be understood
LEAST = {"bucket_cap_mb": 0, "micro_batches": 1, "sync_every": 1}  # the smallest values of options
MICRO_BATCHES = 6  # of a pipeline without a split_size: the tutorial's 120 images by 20

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"launches": 1, "curve_steps": 20, "blocks": 5, "steps_per_block": 10},
    "standard": {
        "launches": 5, "curve_steps": 20, "blocks": 15, "steps_per_block": 4,
        "warmup_seconds": 1.0, "block_seconds": 0.2,
    },
    "paper": {
        "launches": 10, "curve_steps": 50, "blocks": 30, "steps_per_block": 4,
        "warmup_seconds": 2.0, "block_seconds": 0.5,
    },
}  # fmt: skip
"""Launches are the unit of replication: each is a fresh set of processes (Kalibera & Jones 2013, ISMM). A block has at
least so many steps, each resident batch once, and more where `block_seconds` leave time for them."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One trial of the plan. `status` is "planned", or why it will not run."""

    spec: TrialSpec
    status: Literal["planned", "skipped", "unavailable"] = "planned"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials in the order in which they will run; those that will not run come first."""

    trials: tuple[Planned, ...]
    platform: Platform
    preset: str
    interpreters: dict[str, str]
    compile_cache: str = ""  # a folder, "none", or "" for one that lasts as long as a session
    launches: int = 1  # of each cell

    def runnable(self) -> list[TrialSpec]:
        """The trials that will be launched, in order."""
        return [trial.spec for trial in self.trials if trial.status == "planned"]


def make_plan(request: Request, machine: Machine) -> Plan:
    """Every cell that the request names, `launches` times each.

    Launches of all cells are interleaved: each round runs every cell once, in a seeded random order, so that a machine
    that drifts hits all alike. Raises UsageError for a request that cannot be met, MachineUnfit for a broken driver.
    """
    frameworks = run_request.expand("--framework", request.frameworks, registry.packages())
    names = run_request.expand("--workload", request.workloads, workloads.names())
    check_name("--precision", request.precision or "fp32", PRECISIONS)
    for track in request.tracks:
        check_name("--track", track, run_request.TRACKS)
    platform = run_request.platform(request, machine)
    devices = run_request.device_counts(request, machine, platform)
    preset = request.preset or ("smoke" if platform == "cpu" else "standard")
    check_name("--preset", preset, PRESETS)
    run_request.check_numbers(request)
    if request.training:
        run_request.check_training(request.training)
        if request.launches is not None:
            raise UsageError(f"--launches {request.launches}: under train, --seeds says how many trainings a cell has")
    specs = [registry.framework(name) for name in frameworks]
    run_request.check_strategies(request.strategies, specs)
    run_request.check_options(request, specs)
    run_request.check_settings(request, specs)
    check_name("--batch-norm", request.batch_norm or "per_device", run_request.NORMALIZATIONS)
    check_name("--learning-rate-scaling", request.learning_rate_scaling, run_request.SCALINGS)
    check_names(request.interpreters)
    interpreters = {
        spec.name: request.interpreters.get(spec.name) or registry.default_interpreter(spec) for spec in specs
    }
    needed = beside([request.training])
    absent = {spec.name: registry.missing(spec, interpreters[spec.name], beside=needed) for spec in specs}

    cells: list[Planned] = []
    for workload in run_request.chosen_workloads(names, request):
        for spec in specs:
            for strategy in spec.strategies:
                if "all" in request.strategies or strategy.name in request.strategies:
                    for track in dict.fromkeys(request.tracks):
                        known = (workload, spec, strategy, run_request.track(track), platform, devices, preset)
                        cells += _cells(request, *known, absent[spec.name])
    if not cells:
        raise UsageError("nothing to do: no strategy of the chosen frameworks was named")
    _check_effect(request, [cell.spec for cell in cells])
    launches = request.launches or PRESETS[preset]["launches"]
    if request.training:
        launches = request.training.seeds or launches
    return Plan(
        trials=_interleave(cells, launches),
        platform=platform,
        preset=preset,
        interpreters=interpreters,
        compile_cache=request.compile_cache,
        launches=launches,
    )


def _check_effect(request: Request, specs: Sequence[TrialSpec]) -> None:
    """Raises UsageError for an option that changes none of the cells: something else was meant."""
    if request.learning_rate_scaling == "linear" and all(spec.optimizer.scaled_by == 1 for spec in specs):
        raise UsageError(
            "--learning-rate-scaling linear: no cell here spreads the batch over several devices; leave it out"
        )
    if request.batch_norm and not any(workloads.get(spec.workload, spec.size).normalizes for spec in specs):
        names = ", ".join(dict.fromkeys(spec.workload for spec in specs))
        raise UsageError(f"--batch-norm {request.batch_norm}: there is no BatchNorm in {names}; leave it out")


def check_data(data: Path | None, plan: Plan) -> None:
    """Raises UsageError for a --data that is no folder, that no workload of the plan takes, or that one lacks."""
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
        raise UsageError(f"--data {data}: {', '.join(name for name, _ in names)} takes no data; leave it out")
    if not data.is_dir():
        raise UsageError(f"--data {data}: is not a folder; name the one that holds the files")


def check_names(interpreters: Iterable[str]) -> None:
    """Raises UsageError for a Python of a framework that there is not."""
    for name in interpreters:
        check_name("--interpreter", name, registry.packages(), extra=" (as NAME=PATH)")


def beside(trainings: Iterable[TrainingSpec | TrainingRequest | None]) -> tuple[str, ...]:
    """The modules that an interpreter needs beside its framework's: for checkpoints."""
    saves = any(training and (training.save_every or training.init_from) for training in trainings)
    return ("safetensors",) if saves else ()


def _cells(
    request: Request,
    workload: Workload,
    framework: FrameworkSpec,
    strategy: StrategySpec,
    track: Track,
    platform: Platform,
    devices: tuple[int, ...],
    preset: str,
    absent: str,
) -> list[Planned]:
    """The cells of one strategy on one track and workload: one for each number of devices and value of its options."""
    counts = [1] if strategy.parallelism == "none" else list(devices)
    strategy = track_settings.strategy_on(strategy, track)
    chosen_optimizer = optimizers.parse(request.optimizer, workload.optimizer)
    normalization, why_not_normalized = _normalization(strategy, request, platform)
    cells = []
    for count, chosen in itertools.product(counts, _option_values(request, strategy)):
        data_parallel = strategy.parallelism == "data"
        own_batch = workload.global_batch * (count if workload.batch_per_device and data_parallel else 1)
        batch = request.global_batch or own_batch
        parts = count * request.accumulation_steps if data_parallel else request.accumulation_steps
        options, impossible = strategy.options | chosen, ""
        try:
            if strategy.parallelism in ("data", "none") and batch % parts:
                steps = f" × {request.accumulation_steps} accumulation steps" * (request.accumulation_steps > 1)
                raise UsageError(
                    f"global batch {batch} of {workload.name} is not divisible by {parts} ({count} devices{steps}): "
                    f"choose --global-batch as a multiple of {parts}, or other numbers of these"
                )
            options = resolve_options(strategy, workload, chosen, devices=count, batch=batch)
        except UsageError as error:
            # An error where the user asked for just this; in a matrix of everything, a skipped row.
            if data_parallel:
                asked = (request.devices or request.global_batch) and "all" not in request.workloads
            else:
                asked = strategy.name in request.strategies
            if asked or chosen:
                raise
            impossible = str(error)
        numbers: Any = {name: value for name, value in PRESETS[preset].items() if name != "launches"}
        numbers["curve_steps"] = min(numbers["curve_steps"], workload.curve_steps)
        optimizer = chosen_optimizer
        if request.learning_rate_scaling == "linear" and data_parallel:
            optimizer = optimizers.scaled(optimizer, count)
        known: Any = {"strategy": strategy, "workload": workload, "platform": platform, "optimizer": optimizer}
        not_applicable = partial(track_settings.not_applicable, norm=normalization, **known)
        settings = track_settings.resolve(framework, strategy, track, request, not_applicable)
        # what the phase's batch must be a multiple of
        unit = math.lcm(parts, options.get("micro_batches") or 1, 1 if data_parallel else count)
        spec = TrialSpec(
            framework=framework.name,
            workload=workload.name,
            size=workload.size,
            strategy=strategy.name,
            options=options,
            platform=platform,
            devices=count,
            global_batch=batch,
            track=track,
            settings=settings,
            chosen_settings={name: settings[name] for name in request.settings if name in settings},
            precision=run_request.precision(request, track, platform),
            optimizer=optimizer,
            seed=request.seed,
            variant=_variant(options, chosen, strategy, settings, request),
            algorithm=strategy.algorithm,
            normalization=normalization,
            accumulation_steps=request.accumulation_steps,
            tolerances=_tolerances(strategy, options),
            parity_steps=LOCAL_PARITY_STEPS if strategy.algorithm == "local" else workload.parity_steps,
            parity_batch=unit * math.ceil(min(workload.parity_batch, batch) / unit),
            timeout_seconds=request.timeout_seconds,
            **numbers,
        )
        reason = impossible or _why_not(spec, strategy)
        if workload.normalizes:
            reason = reason or why_not_normalized
        if not registry.has_model(framework, workload.name):
            reason = f"{framework.title} has no model of {workload.name} here"
        for training in _trainings(request, workload, strategy, parts):
            cell = Planned(spec=replace(spec, training=training))
            if reason:
                cell = replace(cell, status="skipped", reason=reason)
            elif absent:
                cell = replace(cell, status="unavailable", reason=absent)
            cells.append(cell)
    return cells


def _variant(
    options: dict[str, Any], chosen: dict[str, Any], strategy: StrategySpec, settings: dict[str, bool], request: Request
) -> str:
    """The options and settings that tell a cell from others: those chosen, and options that depend on the workload."""
    told = {
        name: value
        for name, value in options.items()
        if name in chosen or name in ALWAYS_SHOWN or value != strategy.options[name]
    }
    if request.accumulation_steps > 1:
        told["accumulation_steps"] = request.accumulation_steps
    told |= {name: str(settings[name]).lower() for name in request.settings if name in settings}
    return ", ".join(f"{name}={value}" for name, value in sorted(told.items(), reverse=True))


def _trainings(
    request: Request, workload: Workload, strategy: StrategySpec, parts: int
) -> list[TrainingSpec] | list[None]:
    """What `train` does with a cell, once for each number of workers; under `run` nothing, once.

    `parts`: what data-parallel strategies cut a batch into.
    """
    if request.training is None:
        return [None]
    unit = parts if strategy.parallelism in ("data", "none") else 0 if strategy.fixed_batch else 1
    counts = request.training.workers
    return [run_request.training_of(workload, request.training, batch_unit=unit, workers=count) for count in counts]


def _option_values(request: Request, strategy: StrategySpec) -> list[dict[str, Any]]:
    """Every combination of the values that the request gives to options of this strategy. Raises UsageError."""
    own = {name: values for name, values in request.options.items() if name in strategy.options}
    typed = {
        # each once: 1 and 1.0 may be the same value
        name: list(dict.fromkeys(_typed(name, value, type(strategy.options[name])) for value in values))
        for name, values in own.items()
    }
    return [dict(zip(typed, values, strict=True)) for values in itertools.product(*typed.values())]


def _typed(name: str, value: str, kind: type) -> Any:
    if kind is bool:
        check_name(f"option {name}:", value, ("true", "false"))
        return value == "true"
    try:
        return kind(value)
    except ValueError:
        what = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise UsageError(f"option {name}={value}: must be {what}") from None


def resolve_options(
    strategy: StrategySpec, workload: Workload, chosen: dict[str, Any], *, devices: int, batch: int
) -> dict[str, Any]:
    """A strategy's options with the workload's defaults filled in, checked. Raises UsageError."""
    options = strategy.options | chosen
    for name, allowed in strategy.choices.items():
        check_name(f"option {name}:", options[name], allowed)
    for name, least in LEAST.items():
        if name in options and not least <= options[name] < math.inf:
            raise UsageError(f"option {name}={options[name]}: must be at least {least} and finite")
    if "micro_batches" in options and batch % options["micro_batches"]:
        raise UsageError(
            f"option micro_batches={options['micro_batches']}: a global batch of {batch} cannot be cut into so many "
            "equal parts; choose a divisor of it, or another --global-batch"
        )
    schedule = options.get("schedule", "")
    if schedule:
        count = options["micro_batches"]
        partition.check_schedule(schedule, devices=devices, micro_batches=count, blocks=workload.blocks)
    if "cut" in options:
        stages = devices * partition.stages_per_device(schedule)
        partition.check_stages(stages, workload.blocks)
        if not options["cut"]:
            options["cut"] = workload.default_cut if stages == 2 and workload.default_cut else "parameters"
        if options["cut"] not in partition.BALANCED:
            partition.cut_points(options["cut"], workload.blocks, stages)
    if "split_size" in options:
        if "split_size" not in chosen:
            options["split_size"] = math.ceil(batch / MICRO_BATCHES)
        partition.micro_batches(batch, options["split_size"])
    return options


def _normalization(strategy: StrategySpec, request: Request, platform: Platform) -> tuple[Normalization, str]:
    """Which samples share BatchNorm statistics, and why it cannot be as the request has it, or ""."""
    own, wanted = strategy.normalization, request.batch_norm
    if wanted is None or wanted == own or strategy.parallelism == "none":  # on one device both are the same
        return own, ""
    if wanted not in strategy.other_normalizations:
        return own, f"its BatchNorm is {own}; --batch-norm {wanted} is not offered for it"
    needs_gpu = strategy.other_normalizations[wanted]  # pyright: ignore[reportArgumentType] -- checked by make_plan
    return run_request.normalization(wanted), needs_gpu if platform == "cpu" else ""


def _tolerances(strategy: StrategySpec, options: dict[str, Any]) -> ToleranceSet:
    """The tolerances of the parity gate: looser ones where an option asks for them."""
    for option in _texts(options):
        if option in strategy.tolerances:
            return strategy.tolerances[option]
    return "exact"


def _texts(options: dict[str, Any]) -> list[str]:
    """Options as manifests name their values: "cross_device=nccl"."""
    return [f"{name}={value}" for name, value in options.items()]


def _why_not(spec: TrialSpec, strategy: StrategySpec) -> str:
    """Why this cell cannot run on this machine, or ""."""
    if strategy.needs_gpu and spec.platform == "cpu":
        return strategy.needs_gpu
    for option in _texts(spec.options):
        if option in strategy.options_need_gpu and spec.platform == "cpu":
            return f"option {option}: {strategy.options_need_gpu[option]}"
        if option in strategy.options_need_even_devices and spec.devices % 2:
            return f"option {option}: {strategy.options_need_even_devices[option]}; here are {spec.devices}"
    if spec.devices < strategy.min_devices:
        return f"needs at least {strategy.min_devices} devices, has {spec.devices}"
    if spec.accumulation_steps > 1 and strategy.parallelism == "pipeline":
        return "cuts its batch into micro-batches itself: --accumulation-steps is for data-parallel strategies"
    if spec.accumulation_steps > 1 and strategy.parallelism == "model":
        return "takes the whole batch at once: --accumulation-steps is for data-parallel strategies"
    if spec.accumulation_steps > 1 and not strategy.accumulates:
        return "every push is an update of its own: there is nothing to accumulate"
    if spec.precision == "tf32" and spec.platform == "cpu":
        return "TF32 exists only on GPUs"
    return ""


def _interleave(cells: list[Planned], launches: int) -> tuple[Planned, ...]:
    """Cells that will not run once each; then rounds of all others."""
    idle = [cell for cell in cells if cell.status != "planned"]
    runnable = [cell.spec for cell in cells if cell.status == "planned"]
    return (*idle, *rounds(runnable, launches))


def rounds(cells: Sequence[TrialSpec], launches: int) -> list[Planned]:
    """Every cell once in each round, each round in its own seeded order. `cells`: their first launches."""
    return [
        # each launch of a training is a training of its own, of other weights and in another order
        Planned(spec=replace(spec, launch=launch, seed=spec.seed + (launch if spec.training else 0)))
        for launch in range(launches)
        for spec in random.Random(f"{cells[0].seed if cells else 0}/{launch}").sample(cells, len(cells))
    ]
