"""What a report says of the bounds of its devices."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import meanings
from harness.reporting.model import Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.tables import bounds_table

TITLE = "Bounds of the devices"
NOTE = (
    "How fast simple programs run on these devices. They are written in the cell's framework, and timed after the "
    "timed blocks of each launch. Each number is the highest of a cell's launches. The devices can do at least the "
    "highest number of a column; lower ones may be due to the framework, its libraries or the card."
)


def section(cells: Sequence[Cell]) -> list[Section]:
    """The table of the bounds; nothing if none was measured on a GPU."""
    rows = bounds_table.measured(cells)
    if not rows:
        return []
    table = bounds_table.table(rows)
    return [Section(TITLE, (paragraph(NOTE), table, paragraph("What the columns mean:"), meanings(table)))]
