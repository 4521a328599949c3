"""The table of every epoch of every seed, which epochs.csv holds: all that was recorded, not rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.values import Kind, Value
from harness.spec import Epoch

WHOLE_NUMBERS = ("steps", "samples")


@dataclass(frozen=True, kw_only=True)
class _Row:
    cell: str
    seed: int
    epoch: Epoch


def _field(name: str) -> Callable[[_Row], Value]:
    return lambda row: getattr(row.epoch, name)


COLUMNS = (
    ColumnOf[_Row](name="cell", kind=Kind.TEXT, value=lambda row: _no_formula(row.cell)),
    ColumnOf[_Row](name="seed", kind=Kind.COUNT, value=lambda row: row.seed),
    ColumnOf[_Row](name="epoch", kind=Kind.COUNT, value=lambda row: row.epoch.number),
    *(
        ColumnOf[_Row](
            name=field.name,
            kind=Kind.COUNT if field.name in WHOLE_NUMBERS else Kind.SHORTEST,
            value=_field(field.name),
        )
        for field in fields(Epoch)
        if field.name != "number"
    ),
)


def _no_formula(text: str) -> str:
    """The text, with an apostrophe before it where a spreadsheet would take it for a formula and carry that out."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def table(cells: Sequence[Cell]) -> Table | None:
    """One row per epoch; None if no training has any."""
    rows = [
        _Row(cell=cell.spec.cell, seed=result.spec.seed, epoch=epoch)
        for cell in cells
        for result in cell.launches
        for epoch in result.epochs
    ]
    return make_table(COLUMNS, rows) if rows else None
