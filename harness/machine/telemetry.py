"""Samples clocks, power and temperature of the GPUs of a launch, and their errors, from the parent: workers know
nothing of it.

The rate is the same for all launches of a run, and once a second, because sampling is not free: a tool that polled ten
times a second was suspected of slowing down cells whose host sets the pace. NVML takes about a millisecond to read one
GPU; the suite itself takes some five microseconds for it, measured with a stand-in for NVML.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import fields

import psutil

from harness.machine import nvml
from harness.machine.gpu_errors import ErrorWatch, disturbances
from harness.machine.nvml import Sample
from harness.spec.disturbances import Disturbance
from harness.spec.measured import Timing
from harness.spec.telemetry import GpuErrors, GpuTelemetry, HostLoad, Telemetry, timed_blocks

MOST_SAMPLES = 3600
"""Of a launch: an hour. After that every second one is dropped, and half as many are taken, and so on."""
MOST_RECORDED = 600
"""Of a launch in its row: ten minutes of timed blocks. Of more samples, equally spaced ones are kept."""
COUNTERS = {
    "power_violation_ms": ("power_violation_ns", 1e6),
    "thermal_violation_ms": ("thermal_violation_ns", 1e6),
    "energy_joules": ("energy_millijoules", 1e3),
}
"""Columns of a record that count from the first sample: the counter, and what its differences are divided by."""


class Recorder:
    """The samples of one launch. The first one is taken at once."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """`uuids`: of the launch's GPUs; none on CPU devices, where only the load of the host is recorded."""
        self.uuids = tuple(uuids)
        self._seconds: list[float] = []
        self._samples: list[tuple[Sample, ...]] = []  # of all GPUs
        self._every, self._calls = 1, 0
        self._host = [host_load()]
        self._error_watch = ErrorWatch(self.uuids)
        self._errors: tuple[GpuErrors, ...] = ()
        self._take()

    def sample(self) -> None:
        """Take a sample. It is to be called once a second."""
        self._calls += 1
        if self._calls % self._every == 0:
            self._take()

    def end(self) -> list[Disturbance]:
        """Take the last sample. Returns the errors of GPUs that disturbed the launch."""
        self._take()
        self._host.append(host_load())
        self._errors = self._error_watch.end()
        return disturbances(self._errors)

    def _take(self) -> None:
        if not self.uuids:
            return
        if len(self._samples) >= MOST_SAMPLES:
            del self._seconds[1::2], self._samples[1::2]
            self._every *= 2
        self._seconds.append(time.monotonic())
        self._samples.append(tuple(nvml.sample(uuid) for uuid in self.uuids))

    def record(self, timings: Sequence[Timing]) -> Telemetry:
        """What a row keeps. `timings`: of the launch's ranks.

        Of a timed launch, that are the samples within its timed blocks, with one sample before and one after them.
        """
        blocks = timed_blocks(timings)
        kept = range(len(self._seconds))
        if blocks:
            before = [number for number in kept if self._seconds[number] <= blocks[0][0]]
            after = [number for number in kept if self._seconds[number] >= blocks[-1][1]]
            kept = range(before[-1] if before else 0, after[0] + 1 if after else len(kept))
        kept = sorted({*kept[:: 1 + len(kept) // MOST_RECORDED], *kept[-1:]})
        zero = blocks[0][0] if blocks else next(iter(self._seconds), time.monotonic())
        return Telemetry(
            zero=zero,
            seconds=tuple(round(self._seconds[number] - zero, 3) for number in kept),
            gpus=tuple(self._columns(gpu, kept) for gpu in range(len(self.uuids))),
            errors=self._errors,
            host=tuple(load for load in self._host if load is not None),
        )

    def _columns(self, gpu: int, kept: Sequence[int]) -> GpuTelemetry:
        columns = {}
        for name in (item.name for item in fields(GpuTelemetry) if item.name != "uuid"):
            counter, per = COUNTERS.get(name, (name, 0))
            values = [getattr(sample[gpu], counter) for sample in self._samples]
            first = next((value for value in values if value is not None), 0)
            found = [values[number] for number in kept]
            if any(value is not None for value in found):
                columns[name] = tuple(_rounded((v - first) / per if v is not None and per else v) for v in found)
        return GpuTelemetry(uuid=self.uuids[gpu], **columns)


def _rounded(value: float | None) -> float | None:
    return round(value, 1) if isinstance(value, float) else value


def busy_host() -> str:
    """What it means for CPU devices that other work runs on the host, in a sentence; "" for an idle one.

    A host is idle if its load, a mean of one minute, is less than half of its cores.
    """
    found, cores = host_load(), os.cpu_count() or 1
    if found is None or found.load < cores / 2:
        return ""
    return (
        f"In the last minute the load of this host was {found.load:.1f}, on {cores} core{'s' * (cores != 1)}: if other "
        "work goes on, it will slow these CPU devices down, and some cells more than others."
    )


def host_load() -> HostLoad | None:
    """The load of the host now. None where the system does not tell it."""
    try:
        found, load = psutil.cpu_times(), os.getloadavg()[0]
    except OSError:
        return None
    states = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")  # user has the time of guests
    return HostLoad(
        load=round(load, 2),
        cpu_seconds=round(sum(getattr(found, state, 0.0) for state in states), 2),
        steal_seconds=round(getattr(found, "steal", 0.0), 2),
    )
