"""What NVML says of the GPUs: which there are, which of them cannot be used, and what happens on one at this moment.

No framework is imported and no CUDA context is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pynvml  # the module of the package nvidia-ml-py

from harness.spec import Gpu

TOO_HOT = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)
"""Reasons for lower clocks that are a fault of the machine. To reach the power limit is normal under load."""

VIOLATION_FIELDS = {
    pynvml.NVML_PERF_POLICY_POWER: pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    pynvml.NVML_PERF_POLICY_THERMAL: pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
}


@dataclass(frozen=True, kw_only=True)
class FoundGpu:
    """A GPU of this machine, visible to CUDA or not."""

    gpu: Gpu
    problem: str = ""  # why no program can use it
    exclusive: bool = False  # whether one process at a time may use it


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU. In a container its number may be that of the host."""

    pid: int
    kind: Literal["compute", "graphics"]
    memory_bytes: int | None = None  # None: NVML does not say


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What happens on one GPU. None: NVML does not say."""

    processes: tuple[GpuProcess, ...] | None = None
    memory_used: int | None = None  # bytes, without what the driver reserves for itself
    throttled: bool = False  # the clocks are lower because the GPU is too hot, or lacks power
    lost: bool = False  # it does not answer any more, until the machine is restarted


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Clocks, power and temperature of one GPU at one moment. None: this GPU or this driver does not say.

    The last three count since some moment in the past; only their differences mean anything.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None  # the limit in force
    temperature_celsius: int | None = None
    busy_percent: int | None = None  # of the last moments (1/6 s to 1 s) in which some kernel ran
    clock_reasons: int | None = None  # why the clocks are lower than they could be, as NVML's bit mask
    power_violation_ns: int | None = None  # time with clocks lowered by the power limit
    thermal_violation_ns: int | None = None  # the same by heat
    energy_millijoules: int | None = None


def find_gpus() -> tuple[list[FoundGpu], str, str]:
    """All GPUs, the driver version, and why none can be used, or "". To have no driver is no problem: there are no
    GPUs."""
    try:
        with opened():
            driver = pynvml.nvmlSystemGetDriverVersion()
            return [_find(index) for index in range(pynvml.nvmlDeviceGetCount())], driver, ""
    except pynvml.NVMLError as error:
        if code(error) in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return [], "", ""
        if code(error) == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return [], "", "Driver/library version mismatch: the NVIDIA driver was updated; restart the machine"
        return [], "", str(error)


def read(uuid: str) -> Reading:
    """What happens on a GPU now. Takes about a millisecond."""
    try:
        with opened():
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return Reading(processes=_processes(handle), memory_used=_memory_used(handle), throttled=_throttled(handle))
    except pynvml.NVMLError as error:
        return Reading(lost=code(error) == pynvml.NVML_ERROR_GPU_IS_LOST)


def sample(uuid: str) -> Sample:
    """Clocks, power and temperature of a GPU now. Takes about a millisecond. A GPU that is lost says nothing."""
    try:
        with opened():
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return Sample(
                sm_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
                memory_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
                power_watts=_watts(_milliwatts_now(handle)),
                power_limit_watts=_watts(ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
                temperature_celsius=ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
                busy_percent=_busy_percent(handle),
                clock_reasons=_clock_reasons(handle),
                power_violation_ns=_violation_ns(handle, pynvml.NVML_PERF_POLICY_POWER),
                thermal_violation_ns=_violation_ns(handle, pynvml.NVML_PERF_POLICY_THERMAL),
                energy_millijoules=ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            )
    except pynvml.NVMLError:
        return Sample()


def code(error: pynvml.NVMLError) -> int:
    """The number of an error: pynvml.NVML_ERROR_..."""
    return getattr(error, "value")  # noqa: B009 -- pynvml sets it where no type checker sees it


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """Keep NVML open. A session does so: opening it anew can take a second."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _find(index: int) -> FoundGpu:
    try:
        return _describe(index, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:  # one GPU that does not work must not hide the others
        return FoundGpu(gpu=Gpu(token=str(index), name="unknown", memory_bytes=0), problem=str(error))


def _describe(index: int, handle: Any) -> FoundGpu:
    gpu = Gpu(
        token=str(index),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)) or 0,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        power_limit_watts=(ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) or 0) / 1000,
        max_clock_mhz=ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM) or 0,
        nvlinks=_nvlinks(handle),
    )
    in_instances, _ = ask(pynvml.nvmlDeviceGetMigMode, handle) or (0, 0)
    mode = ask(pynvml.nvmlDeviceGetComputeMode, handle)
    problem = ""
    if in_instances:
        problem = f"it is in MIG mode, which is not supported; turn that off with nvidia-smi -i {index} -mig 0"
    elif mode == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        problem = f"its compute mode prohibits programs; change it with nvidia-smi -i {index} -c 0"
    return FoundGpu(gpu=gpu, problem=problem, exclusive=mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)


def _nvlinks(handle: Any) -> int | None:
    """How many of its NVLinks are active. A GPU knows the numbers of links that it could have."""
    numbers = range(pynvml.NVML_NVLINK_MAX_LINKS)
    known = [state for number in numbers if (state := ask(pynvml.nvmlDeviceGetNvLinkState, handle, number)) is not None]
    return known.count(pynvml.NVML_FEATURE_ENABLED) if known else None


def _processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    """A process that computes and draws counts as one that computes."""
    computing = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    drawing = ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    if computing is None:
        return None
    found = {each.pid: GpuProcess(pid=each.pid, kind="graphics", memory_bytes=_memory(each)) for each in drawing or ()}
    found |= {each.pid: GpuProcess(pid=each.pid, kind="compute", memory_bytes=_memory(each)) for each in computing}
    return tuple(found.values())


def _memory(process: Any) -> int | None:
    """The bytes that a process uses; pynvml gives None where NVML does not say."""
    return None if process.usedGpuMemory is None else int(process.usedGpuMemory)


def _memory_used(handle: Any) -> int | None:
    # The second version leaves out what the driver reserves for itself: hundreds of megabytes on some GPUs.
    found = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    found = found or ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return int(found.used) if found else None


def _throttled(handle: Any) -> bool:
    return bool((_clock_reasons(handle) or 0) & TOO_HOT)


def _busy_percent(handle: Any) -> int | None:
    found = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return None if found is None else int(found.gpu)


def _clock_reasons(handle: Any) -> int | None:
    return ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)


def _milliwatts_now(handle: Any) -> int | None:
    # By NVML's documentation, nvmlDeviceGetPowerUsage gives the mean of a second on Ampere (except GA100) and later.
    fields = ask(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    instant = int(fields[0].value.uiVal) if fields and fields[0].nvmlReturn == pynvml.NVML_SUCCESS else 0
    return instant or ask(pynvml.nvmlDeviceGetPowerUsage, handle)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _violation_ns(handle: Any, policy: int) -> int | None:
    found = ask(pynvml.nvmlDeviceGetViolationStatus, handle, policy)
    if found is not None:
        return int(found.violationTime)
    counter = VIOLATION_FIELDS[policy]  # the same time, which some drivers tell in this way alone
    fields = ask(pynvml.nvmlDeviceGetFieldValues, handle, [counter])
    return int(fields[0].value.ullVal) if fields and fields[0].nvmlReturn == pynvml.NVML_SUCCESS else None


def ask(question: Callable[..., Any], *about: Any) -> Any:
    """The answer; None if this GPU or this driver cannot say. Raises NVMLError for a GPU that is lost."""
    try:
        return question(*about)
    except pynvml.NVMLError as error:
        if code(error) == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None
