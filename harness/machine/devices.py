"""What this machine can train on. GPUs are found by NVML: no framework is imported and no CUDA context is made."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from harness.spec import Gpu
from harness.spec.errors import MachineUnfit


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


def cores() -> tuple[int, ...]:
    """The CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@cache
def machine() -> Machine:
    """This machine. Its devices are looked up once."""
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
    """Raises MachineUnfit if there is a GPU driver that does not work."""
    if found.gpu_problem:
        raise MachineUnfit(f"no GPU can be used ({found.gpu_problem}): fix that, or pass --platform cpu")


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """Visible GPUs, driver version, and what went wrong, or "". To have no driver is no problem: there are no GPUs."""
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
        wrong = f"{stray!r} does not name exactly one GPU of this machine; MIG devices are not supported"
        return (), driver, f"CUDA_VISIBLE_DEVICES={setting}: {wrong}"
    return gpus, driver, ""


def _or_zero(ask: Callable[..., int], *about: Any) -> int:
    import pynvml

    try:
        return ask(*about)
    except pynvml.NVMLError:  # not every GPU and driver can say
        return 0


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
    return info.read_text(errors="replace") if info.exists() else ""


def _virtual() -> bool:
    """Whether this is a virtual machine, by the x86 processor flag `hypervisor`."""
    return " hypervisor" in _cpu_info()


def _cpu_name() -> str:
    for line in _cpu_info().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
