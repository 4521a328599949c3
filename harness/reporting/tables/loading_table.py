"""The table of input pipelines: the speed of training from a loader, beside that with resident batches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import throughput_heading, throughput_unit
from harness.reporting.training import share, throughput
from harness.reporting.values import Kind, Quantity, Value


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A training from a loader. Rates are samples per second; `resident_rate` is that of the same resident training."""

    cell: Cell
    workers: int
    rate: float
    resident_rate: float | None


def _cells(rows: Sequence[Loaded]) -> list[Cell]:
    return [row.cell for row in rows]


def _waiting(row: Loaded) -> Value:
    shares = [found for result in row.cell.launches if (found := share(result, "wait_seconds")) is not None]
    return 100 * statistics.median(shares) if shares else None


COLUMNS = (
    ColumnOf[Loaded](name="cell", kind=Kind.TEXT, value=lambda row: row.cell.title),
    ColumnOf[Loaded](name="workers", kind=Kind.COUNT, value=lambda row: row.workers),
    ColumnOf[Loaded](
        name="throughput",
        kind=Kind.ROUNDED,
        value=lambda row: Quantity(row.rate, f"{row.cell.first.unit}s/s"),
        unit=lambda rows: throughput_unit(_cells(rows)),
        shown_as=lambda rows: throughput_heading(_cells(rows)),
    ),
    ColumnOf[Loaded](name="waiting", kind=Kind.HUNDREDTHS, value=_waiting, unit="%"),
    ColumnOf[Loaded](
        name="step / resident step",
        kind=Kind.HUNDREDTHS,
        value=lambda row: row.resident_rate / row.rate if row.resident_rate else None,
    ),
)


def table(cells: Sequence[Cell]) -> Table | None:
    """One row per training from a loader; None if there is none."""
    rates = {cell.spec.cell: _rate(cell) for cell in cells}
    rows = []
    for cell in cells:
        training, rate = cell.spec.training, rates[cell.spec.cell]
        if training and training.input == "loader" and rate:
            resident = rates.get(cell.spec.computation)  # the name of the resident cell
            rows.append(Loaded(cell=cell, workers=training.workers, rate=rate, resident_rate=resident))
    return make_table(COLUMNS, rows) if rows else None


def _rate(cell: Cell) -> float | None:
    rates = [rate for rate in map(throughput, cell.launches) if rate]
    return statistics.median(rates) if rates else None
