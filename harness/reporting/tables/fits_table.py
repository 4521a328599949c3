"""The table of what fits, one row per cell and global batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from harness.reporting import fits
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.sweep import step_interval
from harness.reporting.tables.cell_columns import STATUS, WORKLOAD, of_processes, speed, throughput_column
from harness.reporting.values import Kind, Measured, Value
from harness.statistics.intervals import scaled


def table(sweeps: Sequence[fits.BatchSweep]) -> Table:
    """Throughput, step time and peak memory at each batch, and whether it fits."""
    return make_table(COLUMNS, [cell for swept in sweeps for cell in swept.cells])


def _step(cell: Cell) -> Value:
    if cell.step_seconds is None:
        return None
    return Measured(1e3 * cell.step_seconds, scaled(step_interval(cell), 1e3))


def _peak(cell: Cell) -> Value:
    found = fits.peak_bytes(cell)
    return None if found is None else found / 2**20


COLUMNS = (
    WORKLOAD,
    ColumnOf[Cell](name="cell", kind=Kind.TEXT, value=fits.name),
    ColumnOf[Cell](name="global batch", kind=Kind.COUNT, value=lambda cell: cell.spec.global_batch),
    throughput_column(
        partial(speed, with_interval=True), meaning="geometric mean of the launches, with its 95% interval."
    ),
    ColumnOf[Cell](name="step", kind=Kind.ROUNDED, value=_step, unit="ms"),
    ColumnOf[Cell](
        name="peak",
        kind=Kind.COUNT,
        value=_peak,
        unit="MiB",
        meaning=lambda cells: (
            "resident memory of the largest process, on the host; the most of any launch."
            if of_processes(cells)
            else "memory of the busiest device; the most of any launch."
        ),
    ),
    STATUS,
)
