"""The table of clocks, power and temperature: what the GPUs of each cell did while its blocks were timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.values import Beside, Kind, Missing, Value
from harness.results.telemetry_summary import (
    InBlocks,
    Summary,
    highest_load,
    ran_nothing,
    share_at_power_limit,
    steal_percent,
    summarize,
)
from harness.spec import Telemetry

OVER_HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A cell, and what was sampled in its successful launches. `summaries`: of those that ran on GPUs."""

    cell: Cell
    telemetry: tuple[Telemetry, ...]
    summaries: tuple[Summary, ...]

    @property
    def gpus(self) -> list[InBlocks]:
        """Each GPU of each launch."""
        return [gpu for summary in self.summaries for gpu in summary.gpus]


def sampled(cells: Sequence[Cell]) -> list[Sampled]:
    """The cells of which a successful launch was sampled."""
    found = []
    for cell in cells:
        telemetry = tuple(result.telemetry for result in cell.good if result.telemetry is not None)
        summaries = tuple(summary for result in cell.good if (summary := summarize(result)) is not None)
        if telemetry:
            found.append(Sampled(cell=cell, telemetry=telemetry, summaries=summaries))
    return found


def at_power_limit(rows: Sequence[Sampled]) -> list[Cell]:
    """The cells whose GPUs were at their power limit in more than half of the readings."""
    return [row.cell for row in rows if (share_at_power_limit(row.summaries) or 0.0) > OVER_HALF]


def idle(rows: Sequence[Sampled]) -> list[Cell]:
    """The cells with a GPU on which no kernel ran in any reading."""
    return [row.cell for row in rows if any(map(ran_nothing, row.gpus))]


def _clock(row: Sampled) -> Value:
    gpus = [fmean(gpu.sm_clock_mhz) for gpu in row.gpus if gpu.sm_clock_mhz]
    if gpus:
        return Beside(fmean(gpus), min(gpus))
    unknown = [summary.unknown for summary in row.summaries if summary.unknown]
    return Missing(unknown[0]) if unknown else None


def _power(row: Sampled) -> Value:
    watts = [each for gpu in row.gpus for each in gpu.power_watts]
    return fmean(watts) if watts else None


def _busy(row: Sampled) -> Value:
    gpus = [fmean(gpu.busy_percent) for gpu in row.gpus if gpu.busy_percent]
    return Beside(fmean(gpus), min(gpus)) if gpus else None


def _at_limit(row: Sampled) -> Value:
    gpus = [100 * fmean(gpu.at_power_limit) for gpu in row.gpus if gpu.at_power_limit]
    return Beside(fmean(gpus), max(gpus)) if gpus else None


def _lowered_by(row: Sampled) -> Value:
    if not any(gpu.at_power_limit for gpu in row.gpus):  # the GPUs gave no reasons, not even that there was none
        return None
    return ", ".join(dict.fromkeys(reason for gpu in row.gpus for reason in gpu.other_reasons)) or "nothing else"


def _joules(row: Sampled) -> Value:
    known = [each.joules_per_sample for each in row.summaries if each.joules_per_sample is not None]
    if known:
        return fmean(known)
    return Missing(row.summaries[0].no_energy) if row.summaries else None


def _unit(rows: Sequence[Sampled]) -> str:
    """What a cell trains on; "sample" where that is not the same for all."""
    units = {row.cell.first.unit for row in rows}
    return units.pop() if len(units) == 1 else "sample"


def _highest(of: Callable[[Telemetry], float | None]) -> Callable[[Sampled], Value]:
    """The highest value over a cell's launches."""
    return lambda row: max((value for each in row.telemetry if (value := of(each)) is not None), default=None)


def on_gpus(rows: Sequence[Sampled]) -> bool:
    """Whether a GPU was sampled, and not only hosts."""
    return any(row.summaries for row in rows)


COLUMNS = (
    ColumnOf[Sampled](name="cell", kind=Kind.TEXT, value=lambda row: row.cell.title),
    ColumnOf[Sampled](
        name="SM clock",
        kind=Kind.GROUPED,
        value=_clock,
        shown=on_gpus,
        shown_as="SM clock (slowest GPU), MHz",
        meaning="the mean, and beside it that of the GPU and launch where it was lowest.",
    ),
    ColumnOf[Sampled](name="power", kind=Kind.GROUPED, value=_power, unit="W", shown=on_gpus, meaning="per GPU."),
    ColumnOf[Sampled](
        name="busy",
        kind=Kind.PERCENT,
        value=_busy,
        shown=lambda rows: any(gpu.busy_percent for row in rows for gpu in row.gpus),
        shown_as="busy (least busy GPU)",
        meaning=(
            "the share of time in which some kernel ran, by NVML, and beside it that of the GPU and launch where it "
            "was lowest."
        ),
    ),
    ColumnOf[Sampled](
        name="limited",
        kind=Kind.PERCENT,
        value=_at_limit,
        shown=on_gpus,
        shown_as="at the power limit (most limited GPU)",
        meaning=(
            "the share of readings in which the power limit lowered the clocks, and beside it that of the GPU and "
            "launch where it was highest."
        ),
    ),
    ColumnOf[Sampled](
        name="temperature",
        kind=Kind.COUNT,
        value=lambda row: max(
            (gpu.temperature_celsius for gpu in row.gpus if gpu.temperature_celsius is not None), default=None
        ),
        unit="°C",
        shown=on_gpus,
        meaning="the highest.",
    ),
    ColumnOf[Sampled](
        name="lowered by",
        kind=Kind.TEXT,
        value=_lowered_by,
        shown=on_gpus,
        meaning="what lowered the clocks in some reading, besides the power limit.",
    ),
    ColumnOf[Sampled](
        name="energy",
        kind=Kind.ROUNDED,
        value=_joules,
        shown=lambda rows: any(isinstance(_joules(row), float) for row in rows),
        shown_as=lambda rows: f"J per {_unit(rows)}",
        meaning="of all GPUs, without the host. Known only where timed blocks span at least 30 seconds.",
    ),
    ColumnOf[Sampled](
        name="steal",
        kind=Kind.HUNDREDTHS,
        value=_highest(steal_percent),
        unit="%",
        meaning=(
            "the share of a launch's CPU time in which a virtual machine waited for its host; of the launch with most."
        ),
    ),
    ColumnOf[Sampled](
        name="load",
        kind=Kind.HUNDREDTHS,
        value=_highest(highest_load),
        meaning=(
            "processes of the host that run or wait to run, the launch's own included, as an average of a minute: the "
            "highest at the beginning or end of a launch."
        ),
    ),
)


def table(rows: Sequence[Sampled]) -> Table:
    """One row per cell."""
    return make_table(COLUMNS, rows)
