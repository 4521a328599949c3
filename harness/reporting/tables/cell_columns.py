"""The columns that several tables of cells share: which cell a row is, its parity and its status."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.reporting import naming
from harness.reporting.columns import ColumnOf
from harness.reporting.summary import Cell
from harness.reporting.values import Kind, Measured, ParityError, Quantity, Value


def workload_name(cell: Cell) -> str:
    """Workload and size."""
    return f"{cell.spec.workload} {cell.spec.size}"


def throughput_unit(cells: Sequence[Cell]) -> str:
    """The unit of the cells' throughputs: "images/s"; "" if they have several, which then stand beside the numbers."""
    units = {cell.first.unit for cell in cells}
    return f"{units.pop()}s/s" if len(units) == 1 else ""


def throughput_heading(cells: Sequence[Cell]) -> str:
    """The unit alone; "throughput" where cells have several."""
    return throughput_unit(cells) or "throughput"


def throughput_column(
    value: Callable[[Cell], Value], *, meaning: str | Callable[[Sequence[Cell]], str] = "", if_known: bool = False
) -> ColumnOf[Cell]:
    """The column of the cells' throughputs, whose heading is their unit."""
    return ColumnOf(
        name="throughput",
        kind=Kind.ROUNDED,
        value=value,
        unit=throughput_unit,
        shown_as=throughput_heading,
        meaning=meaning,
        if_known=if_known,
    )


def speed(cell: Cell, *, with_interval: bool = False) -> Value:
    """A cell's throughput with its unit, in the digits that its interval supports, wherever it stands."""
    if cell.estimate is None:
        return None
    found = Measured(cell.estimate.value, cell.estimate.interval, with_interval=with_interval)
    return Quantity(found, f"{cell.first.unit}s/s")


def of_processes(cells: Sequence[Cell]) -> bool:
    """Whether their peak memory is that of processes on the host, and not of devices."""
    return {cell.first.peak_kind for cell in cells} - {""} == {"process"}


def parity(cell: Cell) -> Value:
    """The worst error in the gate; None if the gate did not judge the cell."""
    found = cell.first.parity
    if found is None:
        return None
    return ParityError(max(check.error for check in found.checks), found.passed, found.tolerances)


WORKLOAD = ColumnOf[Cell](
    name="workload",
    kind=Kind.TEXT,
    value=workload_name,
    shown=lambda cells: len({workload_name(cell) for cell in cells}) > 1,
)

IDENTITY = (
    WORKLOAD,
    ColumnOf[Cell](name="framework", kind=Kind.TEXT, value=lambda cell: naming.framework(cell.first)),
    ColumnOf[Cell](name="strategy", kind=Kind.TEXT, value=lambda cell: cell.spec.strategy),
    ColumnOf[Cell](
        name="track",
        kind=Kind.TEXT,
        value=lambda cell: naming.track(cell.first),
        shown=lambda cells: any(cell.spec.track == "tuned" for cell in cells),
        meaning="tuned: with the settings listed below. Otherwise: how the framework executes steps by default.",
    ),
    ColumnOf[Cell](
        name="precision",
        kind=Kind.TEXT,
        value=lambda cell: cell.spec.precision,
        shown=lambda cells: len({cell.spec.precision for cell in cells}) > 1,
    ),
    ColumnOf[Cell](
        name="options",
        kind=Kind.TEXT,
        value=lambda cell: cell.options or None,
        if_known=True,
    ),
    ColumnOf[Cell](name="devices", kind=Kind.COUNT, value=lambda cell: cell.spec.devices),
    ColumnOf[Cell](
        name="hosts",
        kind=Kind.COUNT,
        value=lambda cell: cell.spec.hosts,
        shown=lambda cells: any(cell.spec.hosts > 1 for cell in cells),
        meaning="over which the devices are spread, as many on each.",
    ),
)
"""The columns that say which cell a row is, in every table of cells."""

PARITY = ColumnOf[Cell](
    name="parity",
    kind=Kind.PARITY,
    value=parity,
    meaning="worst relative error against the reference that section Parity names, in float64, rounded up.",
)
STATUS = ColumnOf[Cell](name="status", kind=Kind.TEXT, value=lambda cell: cell.status)
