"""What this machine has to train on: GPUs by NVML, without any framework and without touching a CUDA context."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from harness.spec.errors import MachineUnfit


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One visible GPU. `token` is what CUDA_VISIBLE_DEVICES takes for it."""

    token: str
    name: str
    memory_bytes: int
    uuid: str = ""
    power_limit_watts: float = 0.0  # in force; 0: it does not say
    max_clock_mhz: int = 0  # of its multiprocessors; 0: it does not say


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware as the planner and the report need it."""

    gpus: tuple[Gpu, ...]
    driver: str
    cpu: str
    cores: tuple[int, ...]  # that this process may use
    memory_bytes: int
    system: str
    gpu_problem: str = ""  # why NVML could not say, where there seems to be a driver


def cores() -> tuple[int, ...]:
    """The CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@cache
def machine() -> Machine:
    """Look at this machine once."""
    gpus, driver, problem = _gpus()
    return Machine(
        gpus=gpus,
        driver=driver,
        cpu=_cpu_name(),
        cores=cores(),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()} {platform.machine()}{', virtual machine' * _virtual()}",
        gpu_problem=problem,
    )


def require_healthy(found: Machine) -> None:
    """Raise MachineUnfit where there is a GPU driver that does not answer."""
    if found.gpu_problem:
        raise MachineUnfit(f"no GPU can be used ({found.gpu_problem}): repair that, or pass --platform cpu")


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """Visible GPUs, driver version, and what went wrong. No driver is not a problem: then there are no GPUs."""
    import pynvml  # the module of the package nvidia-ml-py

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(error, pynvml.NVMLError_LibraryNotFound | pynvml.NVMLError_DriverNotLoaded)  # pyright: ignore
        return (), "", "" if absent else str(error)
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            name = pynvml.nvmlDeviceGetName(handle)
            milliwatts = _or_zero(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            clock = _or_zero(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
            limits = {"power_limit_watts": milliwatts / 1000, "max_clock_mhz": clock}
            found.append((uuid, Gpu(token=str(index), name=name, memory_bytes=memory, uuid=uuid, **limits)))
    except pynvml.NVMLError as error:
        return (), "", str(error)
    finally:
        pynvml.nvmlShutdown()
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus, stray = visible(found, setting)
    if stray:
        wrong = f"{stray!r} names no GPU here, or several; MIG parts are not supported"
        return (), driver, f"CUDA_VISIBLE_DEVICES={setting}: {wrong}"
    return gpus, driver, ""


def _or_zero(ask: Callable[..., int], *about: Any) -> int:
    import pynvml

    try:
        return ask(*about)
    except pynvml.NVMLError:  # not every GPU and driver has it
        return 0


def visible(found: list[tuple[str, Gpu]], setting: str | None) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, and what in it is none, or "". It takes indices and
    UUIDs, and stops at the first that is none: CUDA does so without a word, and fewer GPUs would be measured than were
    named. A negative number tells it to stop.

    Workers get CUDA_DEVICE_ORDER=PCI_BUS_ID, so that indices mean the same to CUDA as to NVML.
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
    return info.read_text(errors="replace") if info.exists() else ""


def _virtual() -> bool:
    """Whether a hypervisor shows itself to the processor: x86's flag of that name."""
    return " hypervisor" in _cpu_info()


def _cpu_name() -> str:
    for line in _cpu_info().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
