"""What this machine can train on: its GPUs that CUDA_VISIBLE_DEVICES leaves visible, and its processor."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from harness.machine import nvml
from harness.spec import Gpu
from harness.spec.errors import MachineUnfit

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware as the planner and the report need it."""

    gpus: tuple[Gpu, ...]
    driver: str
    cpu: str
    cores: tuple[int, ...]  # that this process may use
    memory_bytes: int
    system: str
    gpu_problem: str = ""  # why the GPUs cannot be used, although there seems to be a driver
    exclusive: bool = False  # whether a GPU takes one process at a time only


def cores() -> tuple[int, ...]:
    """The CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@cache
def machine() -> Machine:
    """This machine. Its devices are looked up once."""
    gpus, exclusive, driver, problem = _gpus()
    return Machine(
        gpus=gpus,
        driver=driver,
        cpu=_cpu_name(),
        cores=cores(),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()} {platform.machine()}{', virtual machine' * _virtual()}",
        gpu_problem=problem,
        exclusive=exclusive,
    )


def gpus_of_launch(gpus: Sequence[Gpu], devices: int, *, launch: int) -> Sequence[Gpu]:
    """The GPUs of a launch, counted from 0, on so many of a run's GPUs; none if the run has none. The launches of a
    cell take turns on them, so that what the GPUs differ by is a smaller part of each ratio to a cell on more devices.

    Raises ValueError if the run has GPUs, but fewer than the launch needs.
    """
    if gpus and len(gpus) < devices:
        raise ValueError(f"a launch on {devices} GPUs in a run on {len(gpus)}")
    groups = max(1, len(gpus) // devices)
    first = launch % groups * devices
    return gpus[first : first + devices]


def require_healthy(found: Machine) -> None:
    """Raises MachineUnfit if there are GPUs, or a driver, that do not work."""
    if found.gpu_problem:
        raise MachineUnfit(f"no GPU can be used ({found.gpu_problem}): fix that, or pass --platform cpu")


def require_alike(gpus: Sequence[Gpu]) -> None:
    """Raises MachineUnfit for GPUs of several models: the slowest would set the pace, and one GPU could not be compared
    with several."""
    models: dict[str, list[str]] = {}
    for gpu in gpus:
        models.setdefault(gpu.name, []).append(gpu.token)
    if len(models) > 1:
        found = "; ".join(f"{name}: {','.join(tokens)}" for name, tokens in models.items())
        first = ",".join(next(iter(models.values())))
        raise MachineUnfit(
            f"the {len(gpus)} GPUs are of different models ({found}): choose those of one model, e.g. with "
            f"{VISIBLE}={first}, or pass --devices 1"
        )


def _gpus() -> tuple[tuple[Gpu, ...], bool, str, str]:
    """Visible GPUs, whether one of them takes one process at a time only, the driver version, and what is wrong."""
    found, driver, problem = nvml.find_gpus()
    if problem or not driver:
        return (), False, driver, problem
    setting = os.environ.get(VISIBLE)
    gpus, stray = visible([(each.gpu.uuid, each.gpu) for each in found], setting)
    if stray:
        wrong = f"{stray!r} does not name exactly one GPU of this machine; MIG devices are not supported"
        return (), False, driver, f"{VISIBLE}={setting}: {wrong}"
    chosen = [each for each in found if each.gpu in gpus]
    for each in chosen:
        if each.problem:
            wrong = f"GPU {each.gpu.token} ({each.gpu.name}): {each.problem}; {VISIBLE} can hide it"
            return (), False, driver, wrong
    return gpus, any(each.exclusive for each in chosen), driver, ""


def visible(found: list[tuple[str, Gpu]], setting: str | None) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order, and the first entry that names no GPU, or "".

    CUDA accepts indices and UUIDs, and silently ignores everything from the first invalid entry on. We report that
    entry, because fewer GPUs would be measured than were named. A negative number ends the list on purpose.

    Workers get CUDA_DEVICE_ORDER=PCI_BUS_ID, so that CUDA and NVML number the GPUs alike.
    """
    if setting is None:
        return tuple(gpu for _, gpu in found), ""
    chosen: list[Gpu] = []
    for token in (part.strip() for part in setting.split(",")):
        match = [gpu for uuid, gpu in found if token and (token == gpu.token or uuid.startswith(token))]
        if len(match) != 1:
            return tuple(chosen), "" if token.startswith("-") else token
        chosen.append(match[0])
    return tuple(chosen), ""


def _cpu_info() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text("utf-8", errors="replace") if info.exists() else ""


def _virtual() -> bool:
    """Whether this is a virtual machine, by the x86 processor flag `hypervisor`."""
    return " hypervisor" in _cpu_info()


def _cpu_name() -> str:
    for line in _cpu_info().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
