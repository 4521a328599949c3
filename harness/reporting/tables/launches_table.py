"""The table that `show` prints: how the launches of each cell ended. Timed cells and trainings stand in one table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import IDENTITY, STATUS, speed, throughput_column
from harness.reporting.values import Kind, OutOf


def table(cells: Sequence[Cell]) -> Table:
    """One row for each cell."""
    return make_table(COLUMNS, cells)


COLUMNS = (
    *IDENTITY,
    ColumnOf[Cell](name="ok", kind=Kind.COUNT, value=lambda cell: OutOf(len(cell.good), len(cell.launches))),
    STATUS,
    throughput_column(speed, if_known=True),
)
