"""What a user may ask for, and the checks of each part of it on its own. harness/planning/matrix.py makes the matrix.

Long because each option has its check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from harness import workloads
from harness.machine.devices import Machine, require_healthy
from harness.spec import FrameworkSpec, Normalization, Platform, Precision, Track, TrainingSpec, registry
from harness.spec.errors import UsageError, check_name
from harness.workloads import Workload

TRACKS = ("defaults", "tuned")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16")
NORMALIZATIONS = ("per_device", "global")
SCALINGS = ("none", "linear")
LAST_BATCHES = ("exact", "pad", "drop")
INPUTS = ("resident", "loader")
MAX_CPU_DEVICES, MAX_WORKERS, MAX_LAUNCHES = 64, 256, 1000


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What `train` asks for beside; None stands for the workload's own."""

    epochs: int | None = None
    target_accuracy: float | None = None
    seeds: int | None = None  # how many; the preset's launches where None
    last_batch: str = "exact"
    input: str = "resident"
    workers: tuple[int, ...] = (0,)  # of the loader; several make several cells
    save_every: int = 0
    init_from: str = ""


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
    tracks: tuple[str, ...] = ("defaults",)
    settings: Mapping[str, str] = field(default_factory=dict)  # of frameworks, instead of the tracks' own
    precision: str | None = None  # the track's where None
    optimizer: str | None = None
    learning_rate_scaling: str = "none"
    accumulation_steps: int = 1
    batch_norm: str | None = None  # the strategies' own where None
    seed: int = 0
    preset: str | None = None
    launches: int | None = None  # the preset's where None
    timeout_seconds: float = 600.0
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # values of strategies' options; several sweep
    interpreters: Mapping[str, str] = field(default_factory=dict)
    compile_cache: str = ""
    training: TrainingRequest | None = None  # `train`


def expand(option: str, chosen: tuple[str, ...], known) -> list[str]:
    for name in chosen:
        check_name(option, name, [*known, "all"])
    return list(known) if "all" in chosen else list(dict.fromkeys(chosen))


def platform(request: Request, machine: Machine) -> Platform:
    check_name("--platform", request.platform, ("auto", "cpu", "gpu"))
    if request.platform == "cpu":
        return "cpu"
    require_healthy(machine)
    if request.platform == "gpu" and not machine.gpus:
        raise UsageError("--platform gpu: no GPU is visible here; allowed are auto, cpu")
    return "gpu" if machine.gpus else "cpu"


def device_counts(request: Request, machine: Machine, platform: Platform) -> tuple[int, ...]:
    most = len(machine.gpus) if platform == "gpu" else MAX_CPU_DEVICES
    for count in request.devices:
        if not 1 <= count <= most:
            what = f"the {most} visible GPUs" if platform == "gpu" else "virtual CPU devices"
            raise UsageError(f"--devices {count}: allowed are 1 to {most} ({what})")
    return tuple(dict.fromkeys(request.devices)) or ((most,) if platform == "gpu" else (2,))


def check_numbers(request: Request) -> None:
    if request.global_batch is not None and request.global_batch < 1:
        raise UsageError(f"--global-batch {request.global_batch}: must be at least 1")
    if request.accumulation_steps < 1:
        raise UsageError(f"--accumulation-steps {request.accumulation_steps}: must be at least 1")
    if request.launches is not None and not 1 <= request.launches <= MAX_LAUNCHES:
        raise UsageError(f"--launches {request.launches}: must be at least 1 and at most {MAX_LAUNCHES}")
    if request.seed < 0:
        raise UsageError(f"--seed {request.seed}: must be at least 0")
    if not (math.isfinite(request.timeout_seconds) and request.timeout_seconds > 0):
        raise UsageError(f"--timeout {request.timeout_seconds:g}: must be a positive number of seconds")


def check_training(asked: TrainingRequest) -> None:
    check_name("--last-batch", asked.last_batch, LAST_BATCHES)
    check_name("--input", asked.input, INPUTS)
    least = {"--epochs": (asked.epochs, 0), "--seeds": (asked.seeds, 1), "--save-every": (asked.save_every, 0)}
    for option, (value, smallest) in least.items():
        if value is not None and value < smallest:
            raise UsageError(f"{option} {value}: must be at least {smallest}")
    if asked.seeds is not None and asked.seeds > MAX_LAUNCHES:
        raise UsageError(f"--seeds {asked.seeds}: must be at most {MAX_LAUNCHES}")
    target = asked.target_accuracy
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target-accuracy {target:g}: must be above 0 and at most 1, e.g. 0.97")
    for count in asked.workers:
        if not 0 <= count <= MAX_WORKERS:
            raise UsageError(f"--num-workers {count}: allowed are 0 to {MAX_WORKERS}")
    if asked.input == "resident" and asked.workers != (0,):
        raise UsageError(f"--num-workers {asked.workers[0]}: nothing is loaded; add --input loader")
    if asked.epochs == 0 and asked.save_every:
        raise UsageError("--epochs 0: only evaluates, so there is nothing to save; leave out --save-every")
    if asked.epochs == 0 and not asked.init_from:
        raise UsageError("--epochs 0: only evaluates, so it needs weights: add --init-from RUN")


def training_of(workload: Workload, asked: TrainingRequest, *, batch_unit: int, workers: int) -> TrainingSpec:
    """What `train` does with a cell of this workload. Raises UsageError if it has no accuracy to reach."""
    if workload.target_accuracy is None:
        able = [n for n in workloads.names() if any(s.target_accuracy for s in workloads.sizes(n).values())]
        raise UsageError(
            f"--workload {workload.name}: {workload.size} has no classes, so there is no accuracy to train to; allowed "
            f"are {', '.join(able)}"
        )
    return TrainingSpec(
        epochs=workload.epochs if asked.epochs is None else asked.epochs,
        target_accuracy=asked.target_accuracy or workload.target_accuracy,
        stop_at_target=asked.target_accuracy is not None,
        last_batch=asked.last_batch,  # pyright: ignore[reportArgumentType] -- checked by check_training
        batch_unit=batch_unit,
        input=asked.input,  # pyright: ignore[reportArgumentType]
        workers=workers,
        save_every=asked.save_every,
        init_from=asked.init_from,
    )


def check_strategies(chosen: tuple[str, ...], specs: list[FrameworkSpec]) -> None:
    known = list(dict.fromkeys(strategy.name for spec in specs for strategy in spec.strategies))
    where = f" for {', '.join(spec.name for spec in specs)}"
    for name in chosen:
        check_name("--strategy", name, [*known, "all"], extra=where)


def check_options(request: Request, specs: list[FrameworkSpec]) -> None:
    chosen = [s for spec in specs for s in spec.strategies if {"all", s.name} & set(request.strategies)]
    known = sorted({name for strategy in chosen for name in strategy.options})
    for name in request.options:
        if name not in known:
            names = ", ".join(dict.fromkeys(strategy.name for strategy in chosen))
            if not known:
                raise UsageError(f"--option {name}: there are no options of {names}; leave it out")
            check_name("--option", name, known, extra=f" for {names}")


def check_settings(request: Request, specs: list[FrameworkSpec]) -> None:
    known = {setting.name: setting for spec in specs for setting in spec.settings}
    for name, value in request.settings.items():
        check_name("--setting", name, known, extra=f" for {', '.join(spec.name for spec in specs)}")
        check_name(f"--setting {name}:", value, ("true", "false"))


def workload(name: str, request: Request) -> Workload:
    sizes = workloads.sizes(name)
    size = request.size or next(iter(sizes))
    check_name(f"--size of {name}", size, sizes)
    return sizes[size]


def chosen_workloads(names: list[str], request: Request) -> list[Workload]:
    """Those that the request means; under `train` "all" are those that have an accuracy."""
    found = [workload(name, request) for name in names]
    if request.training and "all" in request.workloads:
        return [each for each in found if each.target_accuracy is not None]
    return found


def normalization(name: str) -> Normalization:
    return name  # pyright: ignore[reportReturnType] -- checked by make_plan


def track(name: str) -> Track:
    return name  # pyright: ignore[reportReturnType] -- checked by make_plan


def precision(request: Request, track: Track, platform: Platform) -> Precision:
    """What is asked for; else fp32, but bf16 on the tuned track, where there is hardware for it."""
    own = "bf16" if track == "tuned" and platform == "gpu" else "fp32"
    return request.precision or own  # pyright: ignore[reportReturnType] -- checked by make_plan


def sweep_request(request: Request, option: str, values: tuple[str, ...]) -> Request:
    """The request with every strategy that has the option at each value, beside single and model_parallel.

    Raises UsageError if no chosen strategy has it, or it is free text, which has no values to go through.
    """
    specs = [registry.framework(name) for name in expand("--framework", request.frameworks, registry.packages())]
    check_strategies(request.strategies, specs)
    every = [s for spec in specs for s in spec.strategies if {"all", s.name} & set(request.strategies)]
    having = [strategy for strategy in every if option in strategy.options]
    allowed = {
        name for s in every for name, default in s.options.items() if name in s.choices or not isinstance(default, str)
    }
    if not having or option not in allowed:
        names = ", ".join(dict.fromkeys(strategy.name for strategy in every))
        raise UsageError(
            f"sweep {option!r}: of {names}, allowed are {', '.join(sorted(allowed)) or 'no options at all'}"
        )
    if option in request.options:
        raise UsageError(f"sweep {option!r}: it is also given by --option; its values come from --values alone")
    if not values:
        raise UsageError("--values: names nothing; give a comma list of the option's values")
    chosen = tuple(dict.fromkeys(strategy.name for strategy in having))
    bases = tuple(s.name for s in every if s.name in ("single", "model_parallel")) or ("single",)
    owners = tuple(spec.name for spec in specs if any(option in strategy.options for strategy in spec.strategies))
    return replace(
        request,
        frameworks=owners,
        strategies=tuple(dict.fromkeys((*bases, *chosen))),
        options={**request.options, option: tuple(dict.fromkeys(values))},
    )
