"""The table of all ladders of settings, one row per rung."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import naming
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.ladder import Rung
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import throughput_heading, throughput_unit
from harness.reporting.values import Kind, Measured, Value
from harness.results.rounds import speed_ratio


def table(rungs: Sequence[Rung]) -> Table:
    """The rungs of each ladder from the bottom to the top."""
    return make_table(COLUMNS, rungs)


def _cells(rungs: Sequence[Rung]) -> list[Cell]:
    return [rung.cell for rung in rungs]


def _throughput(rung: Rung) -> Value:
    estimate = rung.cell.estimate
    return None if estimate is None else Measured(estimate.value, estimate.interval)


def _over(cell: Cell, base: Cell | None) -> Value:
    ratio = speed_ratio(cell.timed, base.timed) if base else None
    return None if ratio is None else Measured(ratio.value, ratio.interval)


COLUMNS = (
    ColumnOf[Rung](name="framework", kind=Kind.TEXT, value=lambda rung: naming.framework(rung.cell.first)),
    ColumnOf[Rung](
        name="workload",
        kind=Kind.TEXT,
        value=lambda rung: f"{rung.cell.spec.workload} ({rung.cell.spec.size})",
        shown=lambda rungs: len({(rung.cell.spec.workload, rung.cell.spec.size) for rung in rungs}) > 1,
    ),
    ColumnOf[Rung](name="strategy", kind=Kind.TEXT, value=lambda rung: rung.cell.spec.strategy),
    ColumnOf[Rung](name="devices", kind=Kind.COUNT, value=lambda rung: rung.cell.spec.devices),
    ColumnOf[Rung](
        name="hosts",
        kind=Kind.COUNT,
        value=lambda rung: rung.cell.spec.hosts,
        shown=lambda rungs: any(rung.cell.spec.hosts > 1 for rung in rungs),
    ),
    ColumnOf[Rung](
        name="precision",
        kind=Kind.TEXT,
        value=lambda rung: rung.cell.spec.precision,
        shown=lambda rungs: len({rung.cell.spec.precision for rung in rungs}) > 1,
    ),
    ColumnOf[Rung](
        name="turned on",
        kind=Kind.TEXT,
        value=lambda rung: rung.turned_on,
        meaning="what this rung has beyond the one before it, all of whose settings it has too.",
    ),
    ColumnOf[Rung](
        name="throughput",
        kind=Kind.ROUNDED,
        value=_throughput,
        unit=lambda rungs: throughput_unit(_cells(rungs)),
        shown_as=lambda rungs: throughput_heading(_cells(rungs)),
    ),
    ColumnOf[Rung](
        name="over the previous",
        kind=Kind.HUNDREDTHS,
        value=lambda rung: _over(rung.cell, rung.below),
        meaning="speed divided by that of the rung before it, within rounds.",
    ),
    ColumnOf[Rung](
        name="over the first",
        kind=Kind.HUNDREDTHS,
        value=lambda rung: _over(rung.cell, rung.first if rung.below else None),
        meaning="speed divided by that of the first rung, within rounds.",
    ),
)
