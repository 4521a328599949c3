"""The variables of a launch and of a timed block, as a tidy table has them: name, type, unit, meaning, value.

A column is declared here and nowhere else. docs/usage.md shows the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Generic, TypeVar

from harness.results import rates
from harness.results.rounds import visible_gpus
from harness.results.telemetry_summary import (
    Summary,
    highest_load,
    share_at_power_limit,
    steal_percent,
    summarize,
)
from harness.spec import TrialResult, optimizers

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One variable of a row. `kind` is str, int, float, bool or dict, which a table writes as JSON; only floats may be
    missing."""

    name: str
    kind: type
    unit: str
    meaning: str
    value: Callable[[Row], Any]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch, and what only its whole run can tell about it."""

    run: str  # the name of its folder
    result: TrialResult
    conditions: str = ""  # what keeps it apart from the first launches of its cell
    disagrees: bool = False  # whether its losses are not those of the cells that take the same steps

    @property
    def status(self) -> str:
        """As a report gives it."""
        return "disagrees" if self.disagrees and self.result.status == "ok" else self.result.status

    @property
    def counted_seconds(self) -> list[float]:
        """Seconds of the blocks that count; none where the launch has no speed."""
        timed = self.status == "ok" and self.result.block_seconds
        return rates.counted_seconds(self.result) if timed else []

    @cached_property
    def gpus_in_blocks(self) -> Summary:
        """What its GPUs did in the timed blocks; empty if nothing was sampled."""
        return summarize(self.result) or Summary()


@dataclass(frozen=True, kw_only=True)
class Block:
    """One timed block of a launch."""

    launch: Launch
    number: int  # from 0
    start: float | None  # seconds from the start of the first block; None: not recorded
    seconds: float  # of its slowest rank
    bare_seconds: float | None  # of the block of the bare loop with the same number
    counts: bool  # towards the throughput


def _throughput(launch: Launch) -> float | None:
    return rates.launch_throughput(launch.result) if launch.counted_seconds else None


def _step_seconds(launch: Launch) -> float | None:
    seconds = launch.counted_seconds
    return sum(seconds) / (launch.result.steps_per_block * len(seconds)) if seconds else None


def _mean_of(column: str) -> Callable[[Launch], float | None]:
    """The mean of all samples of all GPUs in the timed blocks."""
    return lambda launch: _mean([each for gpu in launch.gpus_in_blocks.gpus for each in getattr(gpu, column)])


def _temperature(launch: Launch) -> float | None:
    known = [gpu.temperature_celsius for gpu in launch.gpus_in_blocks.gpus]
    return max((each for each in known if each is not None), default=None)


def _at_power_limit(launch: Launch) -> float | None:
    return share_at_power_limit([launch.gpus_in_blocks])


def _bound(name: str) -> Callable[[Launch], Any]:
    return lambda at: getattr(at.result.bounds, name, None)


def _links(name: str, otherwise: Any = None) -> Callable[[Launch], Any]:
    return lambda at: getattr(_bound("links")(at), name, otherwise)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _parity_error(launch: Launch) -> float | None:
    checks = launch.result.parity.checks if launch.result.parity else ()
    return max((check.error for check in checks), default=None)


def _test_accuracy(launch: Launch) -> float | None:
    return next((each.test_accuracy for each in reversed(launch.result.epochs)), None)


IDENTITY: tuple[Column[Launch], ...] = (
    Column("run", str, "", "name of the run's folder", lambda at: at.run),
    Column("started", str, "ISO 8601", "when the run began; identifies the run", lambda at: at.result.run.started),
    Column("session", str, "ISO 8601", "when the session of this launch began", lambda at: at.result.run.session),
    Column("cell", str, "", "the cell, as files and logs name it", lambda at: at.result.spec.cell),
    Column("conditions", str, "", "what keeps the launch apart from the cell's first row", lambda at: at.conditions),
    Column("framework", str, "", "torch, jax, tf or a plug-in", lambda at: at.result.spec.framework),
    Column("workload", str, "", "what is trained", lambda at: at.result.spec.workload),
    Column("size", str, "", "size of the workload", lambda at: at.result.spec.size),
    Column("strategy", str, "", "parallel strategy", lambda at: at.result.spec.strategy),
    Column("variant", str, "", "options that tell the cell from others", lambda at: at.result.spec.variant),
    Column("track", str, "", "defaults or tuned", lambda at: at.result.spec.track),
    Column("platform", str, "", "cpu or gpu", lambda at: at.result.spec.platform),
    Column("devices", int, "", "devices of the cell", lambda at: at.result.spec.devices),
    Column("hosts", int, "", "hosts over which the devices are spread", lambda at: at.result.spec.hosts),
    Column(
        "global_batch", int, "samples", "samples of one step on all devices", lambda at: at.result.spec.global_batch
    ),
    Column("twin", bool, "", "whether it repeats another cell, as an A/A test", lambda at: at.result.spec.twin),
    Column("precision", str, "", "number format of the timed program", lambda at: at.result.spec.precision),
    Column("protocol", str, "", "timing protocol", lambda at: at.result.spec.protocol_name),
    Column("launch", int, "", "number of the launch, from 0; the round", lambda at: at.result.spec.launch),
    Column("seed", int, "", "seed of weights and batches", lambda at: at.result.spec.seed),
    Column("status", str, "", "ok, or why there is no speed, as in the report", lambda at: at.status),
)
"""Which launch it is: the columns that a row of a block has as well."""

LAUNCH_COLUMNS: tuple[Column[Launch], ...] = (
    *IDENTITY,
    Column("reason", str, "", "the status in words", lambda at: at.result.reason),
    Column("options", dict, "JSON", "all options of the strategy", lambda at: at.result.spec.options),
    Column("settings", dict, "JSON", "all settings of the framework", lambda at: at.result.spec.settings),
    Column("normalization", str, "", "what BatchNorm normalizes over", lambda at: at.result.spec.normalization),
    Column("algorithm", str, "", "synchronous, local or asynchronous", lambda at: at.result.spec.algorithm),
    Column("optimizer", str, "", "optimizer and its keys", lambda at: optimizers.words(at.result.spec.optimizer)),
    Column("accumulation_steps", int, "", "parts of each batch", lambda at: at.result.spec.accumulation_steps),
    Column("steps_per_call", int, "steps", "steps in one call", lambda at: at.result.spec.steps_per_call),
    Column(
        "training", str, "", "input of a training: resident or loader; empty for timed cells",
        lambda at: at.result.spec.training.input if at.result.spec.training else "",
    ),
    Column("throughput", float, "samples/s", "all timed samples divided by all timed seconds", _throughput),
    Column("step_seconds", float, "s", "mean time of a step on the slowest rank", _step_seconds),
    Column("unit", str, "", "what a sample is", lambda at: at.result.unit),
    Column("blocks", int, "", "timed blocks that count", lambda at: len(at.counted_seconds)),
    Column("steps_per_block", int, "steps", "steps in each block", lambda at: at.result.steps_per_block),
    Column("build_seconds", float, "s", "building the program, slowest rank", lambda at: at.result.build_seconds),
    Column(
        "first_step_seconds", float, "s", "first step with its compilation, slowest rank",
        lambda at: at.result.first_step_seconds,
    ),
    Column("compile_cache", str, "", "cold, warm or none; empty: unknown", lambda at: at.result.compile_cache),
    Column(
        "peak_bytes", float, "bytes", "most memory of any rank",
        lambda at: max(at.result.peak_bytes, default=None),
    ),
    Column("peak_kind", str, "", "whether that is memory of a device or a process", lambda at: at.result.peak_kind),
    Column(
        "host_launch_seconds", float, "s", "the host launching one tiny operation, slowest rank",
        lambda at: max((each.launch_seconds for each in at.result.timings if each.launch_seconds), default=None),
    ),
    Column("matrix_flops_per_second", float, "FLOP/s", "products on one device", _bound("matrix_flops_per_second")),
    Column("memory_bytes_per_second", float, "bytes/s", "memory of one device", _bound("memory_bytes_per_second")),
    Column("link_bytes_per_second", float, "bytes/s", "between devices", _links("bytes_per_second")),
    Column("links_measured_by", str, "", "all-reduce (its bus bandwidth) or copy", _links("measured_by", "")),
    Column("telemetry", str, "", "on, off; empty: not recorded", lambda at: at.result.run.telemetry),
    Column("sm_clock_mhz", float, "MHz", "of a GPU in the timed blocks, mean of all samples", _mean_of("sm_clock_mhz")),
    Column("power_watts", float, "W", "of a GPU in the timed blocks, mean of all samples", _mean_of("power_watts")),
    Column("busy_percent", float, "%", "time in which some kernel ran, mean of all samples", _mean_of("busy_percent")),
    Column("temperature_celsius", float, "°C", "of the hottest GPU in the timed blocks", _temperature),
    Column("at_power_limit", float, "0 to 1", "share of these samples with clocks lowered for power", _at_power_limit),
    Column(
        "joules_per_sample", float, "J", "of all GPUs in the timed blocks",
        lambda at: at.gpus_in_blocks.joules_per_sample,
    ),
    Column(
        "steal_percent", float, "%", "time of all cores that the hypervisor took",
        lambda at: steal_percent(at.result.telemetry) if at.result.telemetry else None,
    ),
    Column(
        "host_load", float, "processes", "load of the host, a mean of one minute",
        lambda at: highest_load(at.result.telemetry) if at.result.telemetry else None,
    ),
    Column("parity_error", float, "relative", "worst error in the parity gate", _parity_error),
    Column("test_accuracy", float, "0 to 1", "of a training, after its last epoch", _test_accuracy),
    Column(
        "gpu", str, "", "kind of the GPUs",
        lambda at: ", ".join(dict.fromkeys(gpu.name for gpu in at.result.conditions.hardware.gpus)),
    ),
    Column(
        "gpu_uuids", str, "", "all GPUs that the run saw, separated by spaces",
        lambda at: " ".join(at.result.conditions.hardware.uuids),
    ),
    Column("visible_gpus", str, "", "CUDA_VISIBLE_DEVICES of the launch", lambda at: visible_gpus(at.result)),
    Column("boot", str, "", "one uptime of one machine", lambda at: at.result.conditions.hardware.boot),
    Column("driver", str, "", "NVIDIA driver", lambda at: at.result.conditions.hardware.driver),
    Column("cpu", str, "", "processor", lambda at: at.result.conditions.hardware.cpu),
    Column("cores", int, "", "CPU cores that the run may use", lambda at: at.result.conditions.hardware.cores),
    Column(
        "disturbances", int, "", "other processes, lowered clocks and errors of GPUs that were seen",
        lambda at: len(at.result.conditions.disturbances),
    ),
    Column("versions", dict, "JSON", "versions of the packages", lambda at: at.result.conditions.versions),
    Column(
        "libraries", dict, "JSON", "versions of the CUDA libraries",
        lambda at: at.result.conditions.libraries,
    ),
    Column("lock", str, "", "lock file that all packages match", lambda at: at.result.conditions.lock or ""),
    Column("interpreter", str, "", "Python of the workers", lambda at: at.result.conditions.interpreter),
    Column("preset", str, "", "preset of the run", lambda at: at.result.run.preset),
    Column("version", str, "", "version of the suite", lambda at: at.result.run.version),
    Column("commit", str, "", "commit of the suite", lambda at: at.result.run.commit),
    Column("command", str, "", "command of the run", lambda at: at.result.run.command),
)  # fmt: skip


def _of_its_launch(column: Column[Launch]) -> Column[Block]:
    return Column(column.name, column.kind, column.unit, column.meaning, lambda block: column.value(block.launch))


BLOCK_COLUMNS: tuple[Column[Block], ...] = (
    *map(_of_its_launch, IDENTITY),
    Column("block", int, "", "number of the block, from 0", lambda block: block.number),
    Column("counts", bool, "", "whether it enters the throughput of its launch", lambda block: block.counts),
    Column("steps", int, "steps", "steps in the block", lambda block: block.launch.result.steps_per_block),
    Column("start", float, "s", "when it began on its first rank, from the first block", lambda block: block.start),
    Column("seconds", float, "s", "its time on the slowest rank", lambda block: block.seconds),
    Column("bare_seconds", float, "s", "the bare loop's block of the same number", lambda block: block.bare_seconds),
)
