"""The table of all ladders of settings, one row per rung."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import naming
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.ladder import Rung
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import throughput_heading, throughput_unit
from harness.reporting.values import Kind, Quantity, Range, Value


def table(rungs: Sequence[Rung]) -> Table:
    """The rungs of each ladder from the bottom to the top."""
    return make_table(COLUMNS, rungs)


def _cells(rungs: Sequence[Rung]) -> list[Cell]:
    return [rung.cell for rung in rungs]


def _throughput(rung: Rung) -> Value:
    rate = rung.cell.throughput
    return None if rate is None else Quantity(rate, f"{rung.cell.first.unit}s/s")


def _range(rung: Rung) -> Value:
    low, high = rung.cell.low, rung.cell.high
    return None if low is None or high is None else Range(low, high)


def _over(cell: Cell, base: Cell | None) -> Value:
    if base is None or cell.throughput is None or base.throughput is None:
        return None
    return cell.throughput / base.throughput


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
    ColumnOf[Rung](name="range", kind=Kind.ROUNDED, value=_range, shown_as="range"),
    ColumnOf[Rung](
        name="over the previous",
        kind=Kind.HUNDREDTHS,
        value=lambda rung: _over(rung.cell, rung.below),
        meaning="throughput divided by that of the rung before it.",
    ),
    ColumnOf[Rung](
        name="over the first",
        kind=Kind.HUNDREDTHS,
        value=lambda rung: _over(rung.cell, rung.first if rung.below else None),
        meaning="throughput divided by that of the first rung.",
    ),
)
