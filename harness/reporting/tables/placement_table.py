"""The table of what lies where: what each device held and took, and what crossed, in the timed program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import DeviceShare


@dataclass(frozen=True)
class _Row:
    """One device. `crossed` is that of its rank's process, in the row of the process's first device."""

    cell: Cell
    rank: int
    share: DeviceShare
    crossed: str


def table(cells: Sequence[Cell]) -> Table | None:
    """One row for each device of each cell's first launch, or None if nothing was read."""
    rows = [row for cell in cells for row in _rows(cell)]
    return make_table(COLUMNS, rows) if rows else None


def _rows(cell: Cell) -> Iterator[_Row]:
    for rank, measured in enumerate(cell.first.ranks):
        if measured.timing is None:
            continue
        for index, share in enumerate(measured.timing.devices):
            crossed = "not counted" if measured.timing.crossed is None else _in_words(measured.timing.crossed)
            yield _Row(cell, rank, share, "" if index else crossed)


def _in_words(crossed: dict[str, float]) -> str:
    kinds = [f"{kind.replace('_', '-')} {size:,.0f}" for kind, size in sorted(crossed.items()) if size]
    return ", ".join(kinds) or "nothing"


COLUMNS = (
    ColumnOf[_Row](name="cell", kind=Kind.TEXT, value=lambda row: row.cell.title),
    ColumnOf[_Row](name="rank", kind=Kind.LABEL, value=lambda row: row.rank),
    ColumnOf[_Row](name="device", kind=Kind.TEXT, value=lambda row: row.share.device),
    ColumnOf[_Row](name="parameters", kind=Kind.GROUPED, value=lambda row: row.share.parameters, unit="B"),
    ColumnOf[_Row](
        name="optimizer state",
        kind=Kind.GROUPED,
        value=lambda row: row.share.optimizer_state,
        unit="B",
        meaning="without counters of updates.",
    ),
    ColumnOf[_Row](name="batch", kind=Kind.GROUPED, value=lambda row: row.share.batch, unit="B"),
    ColumnOf[_Row](
        name="samples",
        kind=Kind.GROUPED,
        value=lambda row: row.share.samples,
        meaning="how many samples of a step's batch pass through the device.",
    ),
    ColumnOf[_Row](
        name="crossed",
        kind=Kind.TEXT,
        value=lambda row: row.crossed,
        shown_as="crossed, B per step",
        meaning=(
            "payload of this process's collectives in one step, by kind: what each device puts in or, for all-gather, "
            "has afterwards. XLA's CPU compiler writes a reduce-scatter as an all-reduce. For "
            "stages in one process, send is the sum over all cuts, forward and backward."
        ),
    ),
)
