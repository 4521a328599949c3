"""The table that `show` prints: how the launches of each cell ended. Timed cells and trainings stand in one table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import IDENTITY, STATUS, throughput_column
from harness.reporting.values import Kind, OutOf, Quantity, Value


def table(cells: Sequence[Cell]) -> Table:
    """One row for each cell."""
    return make_table(COLUMNS, cells)


def _throughput(cell: Cell) -> Value:
    return None if cell.throughput is None else Quantity(cell.throughput, f"{cell.first.unit}s/s")


COLUMNS = (
    *IDENTITY,
    ColumnOf[Cell](name="ok", kind=Kind.COUNT, value=lambda cell: OutOf(len(cell.good), len(cell.launches))),
    STATUS,
    throughput_column(_throughput, if_known=True),
)
