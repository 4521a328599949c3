"""The declaration of a column, all in one place: name, meaning, how its value follows from a row, when it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.reporting.model import Column, Definition, DefinitionList, Table
from harness.reporting.values import Kind, Value

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class ColumnOf(Generic[Row]):
    """A column over rows of one type, usually cells. `unit`, `meaning` and `shown` may depend on all rows of the table.

    `shown` is whether the table has the column at all; `if_known`: only where a row has a value. `on_screen` is whether
    a terminal shows it, too.
    """

    name: str
    kind: Kind
    value: Callable[[Row], Value]
    unit: str | Callable[[Sequence[Row]], str] = ""
    shown_as: str | Callable[[Sequence[Row]], str] = ""
    meaning: str | Callable[[Sequence[Row]], str] = ""
    shown: Callable[[Sequence[Row]], bool] = lambda rows: True
    if_known: bool = False
    on_screen: bool = True

    def is_in(self, rows: Sequence[Row]) -> bool:
        """Whether the table of these rows has the column."""
        return self.shown(rows) and not (self.if_known and all(self.value(row) is None for row in rows))


def make_table(columns: Sequence[ColumnOf[Row]], rows: Sequence[Row]) -> Table:
    """The table of these rows, with the columns that they show."""
    kept = [column for column in columns if column.is_in(rows)]
    return Table(
        tuple(
            Column(
                name=column.name,
                kind=column.kind,
                unit=_resolve(column.unit, rows),
                shown_as=_resolve(column.shown_as, rows),
                meaning=_resolve(column.meaning, rows),
                on_screen=column.on_screen,
            )
            for column in kept
        ),
        tuple(tuple(column.value(row) for column in kept) for row in rows),
    )


def _resolve(text: str | Callable[[Sequence[Row]], str], rows: Sequence[Row]) -> str:
    return text if isinstance(text, str) else text(rows)


def meanings(table: Table, *others: Definition) -> DefinitionList:
    """What the columns mean that need a sentence, in the table's order; then `others`."""
    known = [Definition(column.heading, column.meaning) for column in table.columns if column.meaning]
    return DefinitionList((*known, *others))
