"""From a request to the ordered list of trials, and the cells that cannot run, with reasons. Launches nothing."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness import partition, registry, workloads
from harness.devices import Machine, require_healthy
from harness.errors import UsageError, check_name
from harness.specs import FrameworkSpec, OptimizerSpec, Platform, Precision, StrategySpec, TrialSpec
from harness.workloads import Workload

PRECISIONS = ("fp64", "fp32", "tf32", "bf16")
MAX_CPU_DEVICES = 64
MICRO_BATCHES = 6  # of a pipeline without a split_size: the tutorial's 120 images by 20

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"launches": 1, "curve_steps": 20, "blocks": 5, "steps_per_block": 10},
    "standard": {
        "launches": 5, "curve_steps": 20, "blocks": 15, "steps_per_block": 10,
        "warmup_seconds": 1.0, "block_seconds": 0.2,
    },
    "paper": {
        "launches": 10, "curve_steps": 50, "blocks": 30, "steps_per_block": 10,
        "warmup_seconds": 2.0, "block_seconds": 0.5,
    },
}  # fmt: skip
"""Launches are the unit of replication: each is a fresh set of processes (Kalibera & Jones 2013, ISMM)."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks for; "all" and None stand for the defaults of this machine and these workloads."""

    frameworks: tuple[str, ...] = ("all",)
    workloads: tuple[str, ...] = ("mnist_cnn",)
    strategies: tuple[str, ...] = ("all",)
    devices: tuple[int, ...] = ()
    platform: Literal["auto", "cpu", "gpu"] = "auto"
    size: str | None = None
    global_batch: int | None = None
    precision: str = "fp32"
    optimizer: str | None = None
    seed: int = 0
    preset: str | None = None
    timeout_seconds: float = 600.0
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # values of strategies' options; several sweep
    interpreters: Mapping[str, str] = field(default_factory=dict)


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

    def runnable(self) -> list[TrialSpec]:
        """The trials that will be launched, in order."""
        return [trial.spec for trial in self.trials if trial.status == "planned"]


def make_plan(request: Request, machine: Machine) -> Plan:
    """Every cell that the request names, `launches` times each.

    Launches of all cells are interleaved: each round runs every cell once, in a seeded random order, so that a machine
    that drifts hits all alike. Raises UsageError for a request that cannot be met, MachineUnfit for a broken driver.
    """
    frameworks = _expand("--framework", request.frameworks, registry.packages())
    names = _expand("--workload", request.workloads, workloads.names())
    check_name("--precision", request.precision, PRECISIONS)
    platform = _platform(request, machine)
    devices = _device_counts(request, machine, platform)
    preset = request.preset or ("smoke" if platform == "cpu" else "standard")
    check_name("--preset", preset, PRESETS)
    _check_numbers(request)
    specs = [registry.framework(name) for name in frameworks]
    _check_strategies(request.strategies, specs)
    _check_options(request, specs)
    for name in request.interpreters:
        check_name("--interpreter", name, registry.packages(), extra=" (as NAME=PATH)")
    interpreters = {spec.name: request.interpreters.get(spec.name, sys.executable) for spec in specs}
    absent = {spec.name: registry.missing(spec, interpreters[spec.name]) for spec in specs}

    cells: list[Planned] = []
    for workload in (_workload(name, request) for name in names):
        for spec in specs:
            for strategy in spec.strategies:
                if "all" in request.strategies or strategy.name in request.strategies:
                    cells += _cells(request, workload, spec, strategy, platform, devices, preset, absent[spec.name])
    if not cells:
        raise UsageError("nothing to do: no strategy of the chosen frameworks was named")
    return Plan(trials=_interleave(cells, request, preset), platform=platform, preset=preset, interpreters=interpreters)


def sweep_request(request: Request, option: str, values: tuple[str, ...]) -> Request:
    """The request with every strategy that has the option at each value, beside single and model_parallel.

    Raises UsageError if no chosen strategy has it, or it is not a number.
    """
    specs = [registry.framework(name) for name in _expand("--framework", request.frameworks, registry.packages())]
    _check_strategies(request.strategies, specs)
    every = [s for spec in specs for s in spec.strategies if {"all", s.name} & set(request.strategies)]
    having = [strategy for strategy in every if option in strategy.options]
    numeric = sorted({name for s in every for name, default in s.options.items() if isinstance(default, int | float)})
    if not having or option not in numeric:
        names = ", ".join(dict.fromkeys(strategy.name for strategy in every))
        raise UsageError(f"sweep {option!r}: of {names}, allowed are {', '.join(numeric) or 'no options at all'}")
    if not values:
        raise UsageError("--values: names nothing; give a comma list of numbers")
    chosen = tuple(dict.fromkeys(strategy.name for strategy in having))
    bases = tuple(s.name for s in every if s.name in ("single", "model_parallel")) or ("single",)
    owners = tuple(spec.name for spec in specs if any(option in strategy.options for strategy in spec.strategies))
    return replace(
        request,
        frameworks=owners,
        strategies=tuple(dict.fromkeys((*bases, *chosen))),
        options={**request.options, option: tuple(dict.fromkeys(values))},
    )


def _cells(
    request: Request,
    workload: Workload,
    framework: FrameworkSpec,
    strategy: StrategySpec,
    platform: Platform,
    devices: tuple[int, ...],
    preset: str,
    absent: str,
) -> list[Planned]:
    """The cells of one strategy on one workload: one for each number of devices, and each value of its options."""
    counts = [1] if strategy.parallelism == "none" else list(devices)
    cells = []
    for count, chosen in itertools.product(counts, _option_values(request, strategy)):
        data_parallel = strategy.parallelism == "data"
        own_batch = workload.global_batch * (count if workload.batch_per_device and data_parallel else 1)
        batch = request.global_batch or own_batch
        options, impossible = strategy.options | chosen, ""
        try:
            if data_parallel and batch % count:
                raise UsageError(
                    f"global batch {batch} of {workload.name} is not divisible by {count} devices: "
                    f"choose --global-batch as a multiple of {count}, or other --devices"
                )
            options = resolve_options(strategy, workload, chosen, devices=count, batch=batch)
        except UsageError as error:
            # An error where the user asked for just this; in a matrix of everything, a skipped row.
            asked = request.devices or request.global_batch if data_parallel else strategy.name in request.strategies
            if asked or chosen:
                raise
            impossible = str(error)
        numbers: Any = {name: value for name, value in PRESETS[preset].items() if name != "launches"}
        spec = TrialSpec(
            framework=framework.name,
            workload=workload.name,
            size=workload.size,
            strategy=strategy.name,
            options=options,
            platform=platform,
            devices=count,
            global_batch=batch,
            precision=_precision(request.precision),
            optimizer=parse_optimizer(request.optimizer, workload.optimizer),
            seed=request.seed,
            parity_batch=count * math.ceil(min(workload.parity_batch, batch) / count),
            timeout_seconds=request.timeout_seconds,
            **numbers,
        )
        reason = impossible or _why_not(spec, strategy)
        if reason:
            cells.append(Planned(spec=spec, status="skipped", reason=reason))
        elif absent:
            cells.append(Planned(spec=spec, status="unavailable", reason=absent))
        else:
            cells.append(Planned(spec=spec))
    return cells


def _option_values(request: Request, strategy: StrategySpec) -> list[dict[str, Any]]:
    """Every combination of the values that the request gives to options of this strategy. Raises UsageError."""
    own = {name: values for name, values in request.options.items() if name in strategy.options}
    typed = {
        name: [_typed(name, value, type(strategy.options[name])) for value in values] for name, values in own.items()
    }
    return [dict(zip(typed, values, strict=True)) for values in itertools.product(*typed.values())]


def _typed(name: str, value: str, kind: type) -> Any:
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
    if "cut" in options:
        partition.check_stages(devices, workload.blocks)
        if not options["cut"]:
            options["cut"] = workload.default_cut if devices == 2 and workload.default_cut else "parameters"
        if options["cut"] not in partition.BALANCED:
            partition.cut_points(options["cut"], workload.blocks, devices)
    if "split_size" in options:
        if "split_size" not in chosen:
            options["split_size"] = math.ceil(batch / MICRO_BATCHES)
        partition.micro_batches(batch, options["split_size"])
    return options


def normalization_groups(
    strategy: StrategySpec, *, batch: int, devices: int, split_size: int = 0, **others: Any
) -> tuple[int, ...]:
    """Sizes of the parts of a batch that share normalization statistics under this strategy with these options."""
    if strategy.normalization == "per_device":
        return (batch // devices,) * devices
    if strategy.normalization == "per_microbatch":
        return partition.micro_batches(batch, split_size)
    return (batch,)


def _why_not(spec: TrialSpec, strategy: StrategySpec) -> str:
    """Why this cell cannot run on this machine, or ""."""
    if strategy.needs_gpu and spec.platform == "cpu":
        return strategy.needs_gpu
    if spec.devices < strategy.min_devices:
        return f"needs at least {strategy.min_devices} devices, has {spec.devices}"
    if spec.precision == "tf32" and spec.platform == "cpu":
        return "TF32 exists only on GPUs"
    return ""


def _interleave(cells: list[Planned], request: Request, preset: str) -> tuple[Planned, ...]:
    """Cells that will not run once each; then rounds of all others, each round in its own seeded order."""
    trials = [cell for cell in cells if cell.status != "planned"]
    runnable = [cell for cell in cells if cell.status == "planned"]
    for launch in range(PRESETS[preset]["launches"]):
        order = random.Random(f"{request.seed}/{launch}").sample(runnable, len(runnable))
        trials += [Planned(spec=replace(cell.spec, launch=launch)) for cell in order]
    return tuple(trials)


def parse_optimizer(text: str | None, default: OptimizerSpec) -> OptimizerSpec:
    """An optimizer from "NAME" or "NAME:key=value,key=value"; without text, the workload's own.

    What is not named keeps the workload's value where its optimizer is the same one, else OptimizerSpec's default; the
    learning rate is the workload's. Raises UsageError.
    """
    if text is None:
        return default
    name, _, rest = text.partition(":")
    check_name("--optimizer", name, ("sgd", "adam"), extra=", as NAME or NAME:key=value,...")
    keys = ("learning_rate", "momentum") if name == "sgd" else ("learning_rate", "beta1", "beta2", "epsilon")
    known: dict[str, Any] = {key: getattr(default, key) for key in keys} if name == default.name else {}
    chosen = {"learning_rate": default.learning_rate} | known
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        check_name(f"--optimizer {name}", key, keys)
        try:
            chosen[key] = float(value)
        except ValueError:
            raise UsageError(f"--optimizer {text!r}: {key} must be a number, not {value!r}") from None
        limit = math.inf if key in ("learning_rate", "epsilon") else 1.0
        if not 0 <= chosen[key] < limit:
            raise UsageError(f"--optimizer {text!r}: {key} must be at least 0 and less than {limit:g}, not {value}")
    return OptimizerSpec(name=name, **chosen)  # pyright: ignore[reportArgumentType]


def _expand(option: str, chosen: tuple[str, ...], known) -> list[str]:
    for name in chosen:
        check_name(option, name, [*known, "all"])
    return list(known) if "all" in chosen else list(dict.fromkeys(chosen))


def _platform(request: Request, machine: Machine) -> Platform:
    check_name("--platform", request.platform, ("auto", "cpu", "gpu"))
    if request.platform == "cpu":
        return "cpu"
    require_healthy(machine)
    if request.platform == "gpu" and not machine.gpus:
        raise UsageError("--platform gpu: no GPU is visible here; allowed are auto, cpu")
    return "gpu" if machine.gpus else "cpu"


def _device_counts(request: Request, machine: Machine, platform: Platform) -> tuple[int, ...]:
    most = len(machine.gpus) if platform == "gpu" else MAX_CPU_DEVICES
    for count in request.devices:
        if not 1 <= count <= most:
            what = f"the {most} visible GPUs" if platform == "gpu" else "virtual CPU devices"
            raise UsageError(f"--devices {count}: allowed are 1 to {most} ({what})")
    return tuple(dict.fromkeys(request.devices)) or ((most,) if platform == "gpu" else (2,))


def _check_numbers(request: Request) -> None:
    if request.global_batch is not None and request.global_batch < 1:
        raise UsageError(f"--global-batch {request.global_batch}: must be at least 1")
    if request.seed < 0:
        raise UsageError(f"--seed {request.seed}: must be at least 0")
    if not (math.isfinite(request.timeout_seconds) and request.timeout_seconds > 0):
        raise UsageError(f"--timeout {request.timeout_seconds:g}: must be a positive number of seconds")


def _check_strategies(chosen: tuple[str, ...], specs: list[FrameworkSpec]) -> None:
    known = list(dict.fromkeys(strategy.name for spec in specs for strategy in spec.strategies))
    where = f" for {', '.join(spec.name for spec in specs)}"
    for name in chosen:
        check_name("--strategy", name, [*known, "all"], extra=where)


def _check_options(request: Request, specs: list[FrameworkSpec]) -> None:
    chosen = [s for spec in specs for s in spec.strategies if {"all", s.name} & set(request.strategies)]
    known = sorted({name for strategy in chosen for name in strategy.options})
    for name in request.options:
        if name not in known:
            names = ", ".join(dict.fromkeys(strategy.name for strategy in chosen))
            raise UsageError(
                f"option {name!r}: {names} have " + (f"only {', '.join(known)}" if known else "no options")
            )


def _workload(name: str, request: Request) -> Workload:
    sizes = workloads.sizes(name)
    size = request.size or next(iter(sizes))
    check_name(f"--size of {name}", size, sizes)
    return sizes[size]


def _precision(name: str) -> Precision:
    return name  # pyright: ignore[reportReturnType] -- checked by make_plan
