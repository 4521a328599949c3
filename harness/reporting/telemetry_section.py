"""What a report says of clocks, power and temperature."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import meanings
from harness.reporting.formatting import count
from harness.reporting.model import Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.tables import telemetry_table

OF_GPUS, OF_HOSTS = "Clocks, power and temperature", "Load of the host"
NOTE = (
    "Each GPU was read once a second. Its numbers are of the readings within timed blocks, over all GPUs and launches "
    "of a cell. A reading is of one moment, so clocks and power differ by chance where readings are few. The host's "
    "numbers are of whole launches."
)


def section(cells: Sequence[Cell]) -> list[Section]:
    """The table of what was sampled; nothing if no launch was."""
    rows = telemetry_table.sampled(cells)
    if not rows:
        return []
    table = telemetry_table.table(rows)
    text = [paragraph(each) for each in (NOTE, *sentence(cells))] if telemetry_table.on_gpus(rows) else []
    return [
        Section(OF_GPUS if text else OF_HOSTS, (*text, table, paragraph("What the columns mean:"), meanings(table)))
    ]


def sentence(cells: Sequence[Cell]) -> list[str]:
    """Which cells had a GPU that did nothing, and which were at the power limit of their GPUs in more than half of the
    readings; nothing if none was."""
    rows = telemetry_table.sampled(cells)
    idle, limited = telemetry_table.idle(rows), telemetry_table.at_power_limit(rows)
    said = [f"On some GPU of a launch, NVML saw no kernel in any reading: {titles(idle)}."] if idle else []
    if not limited:
        return said
    return [
        *said,
        f"{count(len(limited), 'cell')} of {len(rows)} ran at the power limit of the GPUs in more than half of the "
        f"readings: {titles(limited)}. Where a clock is below its highest, another limit would give another "
        "speed.",
    ]


def verdict(cells: Sequence[Cell]) -> list[str]:
    """That the power limit of the GPUs decides speeds, if it does."""
    rows = telemetry_table.sampled(cells)
    limited = telemetry_table.at_power_limit(rows)
    if not limited:
        return []
    which = "All cells" if len(limited) == len(rows) else f"{len(limited)} of {count(len(rows), 'cell')}"
    return [
        f"{which} ran at the power limit of the GPUs in more than half of the readings: under another limit, or on "
        "another card, speeds and their order may differ."
    ]


def titles(cells: Sequence[Cell]) -> str:
    """The names of cells, in a list."""
    return ", ".join(cell.title for cell in cells)
