"""Checks of each part of a request on its own. Every error names the flag, its value, and what is allowed."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

from harness import checkpoints, workloads
from harness.machine.devices import Machine, require_alike, require_healthy
from harness.planning.plan import cache_folder
from harness.planning.run_request import Request, TrainingRequest
from harness.spec import (
    FrameworkSpec,
    Input,
    LastBatch,
    Normalization,
    Platform,
    Precision,
    StrategySpec,
    Track,
    TrainingSpec,
    registry,
)
from harness.spec.errors import UsageError, check_name
from harness.spec.limits import check_limits
from harness.workloads import Workload

TRACKS: tuple[Track, ...] = get_args(Track)
LADDER = "ladder"
"""A value of --track: tuned cells, each with more of the settings than the one before."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PLATFORMS: tuple[Platform, ...] = get_args(Platform)
LAST_BATCHES: tuple[LastBatch, ...] = get_args(LastBatch)
INPUTS: tuple[Input, ...] = get_args(Input)
NORMALIZATIONS: tuple[Normalization, ...] = ("per_device", "global")  # per_microbatch belongs to pipelines
MAX_CPU_DEVICES, MAX_WORKERS = 64, 256
TIMEOUT_SECONDS, TRAINING_TIMEOUT_SECONDS = 600.0, 86400.0
STALL_SECONDS, STALL_SHARE = 300.0, 0.5  # without progress: by default, and as a share of --timeout

Name = TypeVar("Name", bound=str)


def one_of(flag: str, value: str, allowed: Sequence[Name]) -> Name:
    """`value` as one of the allowed names. Raises UsageError if it is none of them."""
    check_name(flag, value, allowed)
    return next(name for name in allowed if name == value)


def precision(value: str) -> Precision:
    """What --precision names. Raises UsageError."""
    if value.lower() in ("fp16", "float16", "half", "amp"):
        raise UsageError(
            f"--precision {value!r}: allowed are {', '.join(PRECISIONS)}; float16 would need loss scaling, which no "
            "cell has, and bf16 needs none"
        )
    return one_of("--precision", value, PRECISIONS)


def expand(flag: str, chosen: Sequence[str], known: Iterable[str], *, also: Mapping[str, str] = {}) -> list[str]:
    """The chosen names, each once, with "all" replaced by all known names. Raises UsageError for an unknown name.
    `also`: as in check_name."""
    names = list(known)
    for name in chosen:
        check_name(flag, name, [*names, "all"], also=also)
    return names if "all" in chosen else list(dict.fromkeys(chosen))


def chosen_frameworks(chosen: Sequence[str]) -> list[str]:
    """As `expand`, of --framework. For the name of a package that a framework needs, the error names the framework."""
    also = {module: name for name in registry.packages() for module in registry.framework(name).modules}
    return expand("--framework", chosen, registry.packages(), also=also)


def resolve_platform(request: Request, machine: Machine) -> Platform:
    """The platform of all cells. Raises UsageError if there is no such platform here, MachineUnfit for a broken
    driver."""
    check_name("--platform", request.platform, ("auto", *PLATFORMS))
    if request.platform == "cpu":
        return "cpu"
    require_healthy(machine)
    if request.platform == "gpu" and not machine.gpus:
        raise UsageError("--platform gpu: no GPU is visible on this machine; allowed are auto, cpu")
    return "gpu" if machine.gpus else "cpu"


def device_counts(request: Request, machine: Machine, platform: Platform) -> tuple[int, ...]:
    """The numbers of devices, each once. Raises UsageError for more devices than there are, MachineUnfit for GPUs of
    several models."""
    hosts = max(1, len(request.hosts))
    most = hosts * len(machine.gpus) if platform == "gpu" else MAX_CPU_DEVICES
    limit = "the number of visible GPUs" if platform == "gpu" else "virtual CPU devices"
    for count in request.devices:
        if not 1 <= count <= most:
            raise UsageError(f"--devices {count}: allowed are 1 to {most} ({limit})")
    default = most if platform == "gpu" else 2 * hosts
    counts = tuple(dict.fromkeys(request.devices)) or (default,)
    if platform == "gpu":
        require_alike(machine.gpus[: max(counts)])
    return counts


def timeout_seconds(request: Request) -> float:
    """How many seconds one phase of one trial may take. Raises UsageError for a number that is no time limit."""
    seconds = request.timeout_seconds
    if seconds is None:
        return TRAINING_TIMEOUT_SECONDS if request.training else TIMEOUT_SECONDS
    if not (math.isfinite(seconds) and seconds >= 1):
        raise UsageError(f"--timeout {seconds:g}: must be a number of seconds, at least 1")
    return seconds


def stall_seconds(request: Request) -> float:
    """How many seconds a phase may go without a sign of progress, as while it compiles.

    Half of --timeout, so that a larger one allows a longer compilation. The time limit of `train` is by default a day,
    half of which would be long to wait for a training that is stuck.
    """
    return STALL_SECONDS if request.timeout_seconds is None else STALL_SHARE * request.timeout_seconds


def compile_cache(request: Request) -> str:
    """A folder that exists or can be made, as an absolute path; "none" and "" as they are. Raises UsageError."""
    value = request.compile_cache
    if value in ("", "none"):
        return value
    folder = cache_folder(value)
    existing = next(place for place in (folder, *folder.parents) if place.exists())  # frameworks make the rest
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) and takes_files(existing)):
        raise UsageError(f"--compile-cache {value}: {existing} is not a writable folder; name another folder, or none")
    return str(folder)


def takes_files(folder: Path) -> bool:
    """Whether a file can be made in a folder. Its permissions do not tell: /proc lets root write, and takes nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def check_training(asked: TrainingRequest) -> None:
    """Raises UsageError for a training that makes no sense on any workload."""
    check_limits(asked)
    target = asked.target_accuracy
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"--target-accuracy {target:g}: must be greater than 0 and at most 1, e.g. 0.97")
    for count in asked.workers:
        if not 0 <= count <= MAX_WORKERS:
            raise UsageError(f"--num-workers {count}: allowed are 0 to {MAX_WORKERS}")
    if asked.input == "resident" and asked.workers != (0,):
        raise UsageError(f"--num-workers {asked.workers[0]}: resident batches need no workers; add --input loader")
    if asked.epochs == 0 and asked.save_every:
        raise UsageError("--epochs 0: only evaluates, so there is nothing to save; leave out --save-every")
    if asked.epochs == 0 and not asked.init_from:
        raise UsageError("--epochs 0: only evaluates, so it needs weights: add --init-from RUN")


def init_from(request: Request) -> str:
    """The checkpoint that training starts from, as an absolute path; "" if there is none. Raises UsageError."""
    asked = request.training and request.training.init_from
    return str(checkpoints.find(asked).absolute()) if asked else ""


def training_of(
    workload: Workload, asked: TrainingRequest, *, batch_unit: int, workers: int, init_from: str
) -> TrainingSpec:
    """How `train` trains a cell of this workload. Raises UsageError if the workload has no accuracy to reach."""
    if workload.target_accuracy is None:
        able = [
            name for name in workloads.names() if any(size.target_accuracy for size in workloads.sizes(name).values())
        ]
        raise UsageError(
            f"--workload {workload.name}: {workload.size} has no classes, so it has no accuracy to train to; "
            f"allowed are {', '.join(able)}"
        )
    return TrainingSpec(
        epochs=workload.epochs if asked.epochs is None else asked.epochs,
        target_accuracy=asked.target_accuracy or workload.target_accuracy,
        stop_at_target=asked.target_accuracy is not None,
        last_batch=one_of("--last-batch", asked.last_batch, LAST_BATCHES),
        batch_unit=batch_unit,
        input=one_of("--input", asked.input, INPUTS),
        workers=workers,
        save_every=asked.save_every,
        init_from=init_from,
        validation_share=workload.validation_share,
    )


def chosen_strategies(request: Request, frameworks: Sequence[FrameworkSpec]) -> list[StrategySpec]:
    """The strategies that the request names, of all these frameworks. Names that two of them share occur twice."""
    return [strategy for spec in frameworks for strategy in spec.strategies if is_chosen(strategy, request)]


def is_chosen(strategy: StrategySpec, request: Request) -> bool:
    """Whether the request names this strategy."""
    return "all" in request.strategies or strategy.name in request.strategies


def check_strategies(request: Request, frameworks: Sequence[FrameworkSpec]) -> None:
    """Raises UsageError for a strategy that none of the frameworks has."""
    known = list(dict.fromkeys(strategy.name for spec in frameworks for strategy in spec.strategies))
    for name in request.strategies:
        check_name("--strategy", name, [*known, "all"], extra=_among(frameworks))


def check_options(request: Request, frameworks: Sequence[FrameworkSpec]) -> None:
    """Raises UsageError for an option that no chosen strategy has."""
    chosen = chosen_strategies(request, frameworks)
    known = sorted({name for strategy in chosen for name in strategy.defaults})
    names = ", ".join(dict.fromkeys(strategy.name for strategy in chosen))
    for name in request.options:
        if not known:
            raise UsageError(f"--option {name}: {names} has no options; leave it out")
        check_name("--option", name, known, extra=f" for {names}")


def check_settings(request: Request, frameworks: Sequence[FrameworkSpec]) -> None:
    """Raises UsageError for a setting that none of the frameworks has, or for a value that is not true or false."""
    known = list(dict.fromkeys(setting.name for spec in frameworks for setting in spec.settings))
    for name, value in request.settings.items():
        check_name("--setting", name, known, extra=_among(frameworks))
        check_name(f"--setting {name}:", value, ("true", "false"))


def _among(frameworks: Sequence[FrameworkSpec]) -> str:
    return f" for {', '.join(spec.name for spec in frameworks)}"


def chosen_workloads(names: Sequence[str], request: Request, platform: Platform) -> list[Workload]:
    """The workloads that the request means, in the requested size. Under `train`, "all" means those with an accuracy.

    Without a size, each has its default on the platform.

    Raises UsageError for a size that a workload does not have.
    """
    found = []
    for name in names:
        sizes = workloads.sizes(name)
        size = request.size or workloads.default_size(name, platform)
        check_name(f"--size of {name}", size, sizes)
        found.append(sizes[size])
    if request.training and "all" in request.workloads:
        return [workload for workload in found if workload.target_accuracy is not None]
    return found
