"""What follows from a launch's telemetry: clocks, power, temperature and energy while its blocks were timed.

Samples and blocks are joined by time: both are on the host's monotonic clock. A sample counts if it was taken within a
timed block. Between timed blocks, a GPU may wait for the host, or run something else. Counters are interpolated between
samples, which are a second apart. Where no sample lies in a timed block, nothing is said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from harness.spec import GpuTelemetry, Telemetry, TrialResult
from harness.spec.telemetry import timed_blocks

LEAST_SECONDS_FOR_ENERGY = 30.0
"""From the start of the first timed block to the end of the last. A GPU may measure its power a quarter of the time
only (arXiv 2312.02741), and its energy counter moves in steps: over less, the error is too large."""
AT_POWER_LIMIT = 0x4
"""The bit of NVML's mask that says that the power limit lowers the clocks."""
OTHER_REASONS = {
    0x2: "a setting of the clocks",
    0x8: "the hardware",
    0x10: "sync boost",
    0x20: "heat (by the driver)",
    0x40: "heat (by the hardware)",
    0x80: "the power supply",
    0x100: "a setting for displays",
    0x200: "the board's limit",
    0x400: "a limit for reliability",
}
"""The other bits, in words, but for that of an idle GPU (0x1), which has nothing to do."""
TOO_SHORT = "window too short"
NO_ENERGY = "not every GPU says it"
WENT_BACK = "a counter went back"
NOT_AROUND = "no readings around the blocks"
NOT_WAITED_FOR = "steps run on after the clock stops"
NO_BLOCKS = "no timed blocks are recorded"
NO_SAMPLES = "no reading in the timed blocks"


@dataclass(frozen=True, kw_only=True)
class InBlocks:
    """What one GPU did in the timed blocks of a launch. None or (): it did not say."""

    uuid: str
    sm_clock_mhz: tuple[int, ...] = ()  # of each sample
    power_watts: tuple[float, ...] = ()  # of each sample
    busy_percent: tuple[int, ...] = ()  # of each sample
    at_power_limit: tuple[bool, ...] = ()  # of each sample
    temperature_celsius: int | None = None  # the highest
    other_reasons: tuple[str, ...] = ()  # for lower clocks, beside the power limit
    power_violation_ms: float | None = None
    thermal_violation_ms: float | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the GPUs of a launch did. `unknown`: why that is not known; `no_energy`: why it has no joules per sample."""

    window_seconds: float = 0.0  # from the start of the first timed block to the end of the last
    gpus: tuple[InBlocks, ...] = ()
    joules_per_sample: float | None = None  # of all GPUs together, per sample that they trained on
    no_energy: str = ""
    unknown: str = ""


def summarize(result: TrialResult) -> Summary | None:
    """What a launch's GPUs did in its timed blocks; None if no GPU was sampled."""
    telemetry = result.telemetry
    if telemetry is None or not telemetry.gpus:
        return None
    blocks = [(start - telemetry.zero, end - telemetry.zero) for start, end in timed_blocks(result.timings)]
    if not blocks:
        return Summary(unknown=NO_BLOCKS, no_energy=NO_BLOCKS)
    window = max(end for _, end in blocks) - blocks[0][0]
    inside = [at for at, second in enumerate(telemetry.seconds) if _within(second, blocks)]
    if not inside:
        return Summary(window_seconds=window, unknown=NO_SAMPLES, no_energy=NO_SAMPLES)
    no_energy = _no_energy(result, telemetry, blocks, window)
    gpus = tuple(_in_blocks(gpu, telemetry.seconds, inside, blocks, energy=not no_energy) for gpu in telemetry.gpus)
    if no_energy:
        return Summary(window_seconds=window, gpus=gpus, no_energy=no_energy)
    samples = result.spec.global_batch * result.steps_per_block * len(blocks)
    joules = sum(gpu.energy_joules or 0.0 for gpu in gpus)
    return Summary(window_seconds=window, gpus=gpus, joules_per_sample=joules / samples)


def steal_percent(telemetry: Telemetry) -> float | None:
    """The part of all cores' time during a launch that the hypervisor took. None: not known."""
    if len(telemetry.host) < 2:
        return None
    first, last = telemetry.host[0], telemetry.host[-1]
    passed, stolen = last.cpu_seconds - first.cpu_seconds, last.steal_seconds - first.steal_seconds
    return 100 * stolen / passed if passed > 0 and 0 <= stolen <= passed else None


def highest_load(telemetry: Telemetry) -> float | None:
    """The load of the host at the beginning or the end of a launch, whichever is higher, in processes."""
    return max((host.load for host in telemetry.host), default=None)


def share_at_power_limit(summaries: Sequence[Summary]) -> float | None:
    """The share of the samples of all GPUs at which the power limit lowered the clocks; None if no GPU said so."""
    samples = [each for summary in summaries for gpu in summary.gpus for each in gpu.at_power_limit]
    return fmean(samples) if samples else None


def ran_nothing(gpu: InBlocks) -> bool:
    """Whether no kernel ran on a GPU, at whatever moment it was asked."""
    return bool(gpu.busy_percent) and not any(gpu.busy_percent)


def _within(second: float, blocks: Sequence[tuple[float, float]]) -> bool:
    """Whether a moment lies in one of the blocks, which are in their order."""
    last = bisect_right(blocks, second, key=lambda block: block[0]) - 1
    return last >= 0 and second <= blocks[last][1]


def _in_blocks(
    gpu: GpuTelemetry,
    seconds: Sequence[float],
    inside: Sequence[int],
    blocks: Sequence[tuple[float, float]],
    *,
    energy: bool,
) -> InBlocks:
    def said(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(column[at] for at in inside if column[at] is not None) if column else ()

    masks = said(gpu.clock_reasons)
    return InBlocks(
        uuid=gpu.uuid,
        sm_clock_mhz=said(gpu.sm_clock_mhz),
        power_watts=said(gpu.power_watts),
        busy_percent=said(gpu.busy_percent),
        at_power_limit=tuple(bool(mask & AT_POWER_LIMIT) for mask in masks),
        temperature_celsius=max(said(gpu.temperature_celsius), default=None),
        other_reasons=_in_words(masks),
        power_violation_ms=_counted(gpu.power_violation_ms, seconds, blocks),
        thermal_violation_ms=_counted(gpu.thermal_violation_ms, seconds, blocks),
        energy_joules=_counted(gpu.energy_joules, seconds, blocks) if energy else None,
    )


def _in_words(masks: Sequence[int]) -> tuple[str, ...]:
    bits = sorted({1 << place for mask in masks for place in range(mask.bit_length()) if mask >> place & 1})
    return tuple(OTHER_REASONS.get(bit, f"reason {bit:#x} of NVML") for bit in bits if bit not in (0x1, AT_POWER_LIMIT))


def _no_energy(result: TrialResult, telemetry: Telemetry, blocks: Sequence[tuple[float, float]], window: float) -> str:
    """Why the energy of a sample is not known, or ""."""
    if result.spec.protocol != "resident":
        return NOT_WAITED_FOR
    if window < LEAST_SECONDS_FOR_ENERGY or result.steps_per_block < 1:
        return TOO_SHORT
    columns = [gpu.energy_joules for gpu in telemetry.gpus]
    if not all(columns):
        return NO_ENERGY
    if any(_went_back(column) for column in columns):
        return WENT_BACK
    joules = [_counted(column, telemetry.seconds, blocks) for column in columns]
    if None in joules:
        return NOT_AROUND
    return "" if all(joules) else NO_ENERGY  # a counter that stands still counts nothing


def _went_back(column: Sequence[float | None]) -> bool:
    """Whether a counter did: it was set back, or has wrapped."""
    return any(later < earlier for earlier, later in pairwise(value for value in column if value is not None))


def _counted(
    column: Sequence[float | None], seconds: Sequence[float], blocks: Sequence[tuple[float, float]]
) -> float | None:
    """How far a counter moved within the blocks. None: it does not exist, went back, or was not read around them."""
    read = [(second, value) for second, value in zip(seconds, column, strict=False) if value is not None]
    if not read or _went_back(column) or blocks[0][0] < read[0][0] or max(end for _, end in blocks) > read[-1][0]:
        return None
    return sum(_at(read, end) - _at(read, start) for start, end in blocks)


def _at(read: Sequence[tuple[float, float]], second: float) -> float:
    """A counter at a moment, on the line between the readings before and after it."""
    after = bisect_right(read, second, key=lambda reading: reading[0])
    if after == len(read):
        return read[-1][1]
    (earlier, low), (later, high) = read[after - 1], read[after]
    return low + (high - low) * (second - earlier) / (later - earlier)
