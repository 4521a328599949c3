"""Clocks, power and temperature of a launch's GPUs, and the load of its host, as the parent sampled them.

Columns, not rows, so that a record stays small. A column has one entry for each of `Telemetry.seconds`; an entry is
None where the GPU did not answer. A column is () if the GPU or its driver never said it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.spec.measured import Timing


@dataclass(frozen=True, kw_only=True)
class GpuTelemetry:
    """The samples of one GPU. The last three columns count from the first sample of the launch."""

    uuid: str
    sm_clock_mhz: tuple[int | None, ...] = ()
    memory_clock_mhz: tuple[int | None, ...] = ()
    power_watts: tuple[float | None, ...] = ()
    power_limit_watts: tuple[float | None, ...] = ()  # the limit in force
    temperature_celsius: tuple[int | None, ...] = ()
    busy_percent: tuple[int | None, ...] = ()  # of the last moments (1/6 s to 1 s) in which some kernel ran
    clock_reasons: tuple[int | None, ...] = ()  # why the clocks were lower than they could be, as NVML's bit mask
    power_violation_ms: tuple[float | None, ...] = ()  # with clocks lowered by the power limit
    thermal_violation_ms: tuple[float | None, ...] = ()  # with clocks lowered by heat
    energy_joules: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuErrors:
    """The errors of one GPU from the beginning to the end of a launch. None: not known.

    `corrected`, `uncorrected`: of its memory, if it counts them (ECC).
    `xids`: the numbers of errors that the driver reported as critical, NVIDIA's Xid. `xids_unknown`: why it did not, or
    not all of them.
    """

    uuid: str
    corrected: int | None = None
    uncorrected: int | None = None
    xids: tuple[int, ...] | None = None
    xids_unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """The load of the host at one moment. Seconds are summed over all cores, since the host started."""

    load: float  # average of a minute, in processes
    cpu_seconds: float  # in any state, idle included
    steal_seconds: float  # in which a virtual machine's core waited because the hypervisor ran something else


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What was sampled during one launch.

    Seconds count from the start of the first timed block; in a launch without one, from the first sample. `zero` is
    that moment on the host's monotonic clock, which the ranks' `Timing.block_starts` are on, too.
    """

    zero: float
    seconds: tuple[float, ...] = ()
    gpus: tuple[GpuTelemetry, ...] = ()
    errors: tuple[GpuErrors, ...] = ()  # one for each GPU; empty in rows of earlier versions
    host: tuple[HostLoad, ...] = ()  # at the beginning and at the end of the launch


def timed_blocks(timings: Sequence[Timing]) -> list[tuple[float, float]]:
    """From when to when each timed block ran on any rank, in seconds of the host's monotonic clock.

    Empty if a rank did not record when its blocks began.
    """
    if not timings or any(len(timing.block_starts) != len(timing.block_seconds) for timing in timings):
        return []
    ranks = [list(zip(timing.block_starts, timing.block_seconds, strict=True)) for timing in timings]
    return [
        (min(start for start, _ in block), max(start + seconds for start, seconds in block))
        for block in zip(*ranks, strict=False)
    ]
