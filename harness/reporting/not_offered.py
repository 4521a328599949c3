"""What a framework does not offer: rows with the reason, so that a missing strategy is not taken for an oversight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Section, Table, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind

TITLE = "What the frameworks do not offer"
NOTE = (
    "Each row is a technique that another framework offers and this one does not. It may be possible to write it by "
    "hand. Not everything that a framework offers has a strategy here."
)


@dataclass(frozen=True)
class _Row:
    framework: str
    technique: str
    reason: str


COLUMNS = (
    ColumnOf[_Row](name="framework", kind=Kind.TEXT, value=lambda row: row.framework),
    ColumnOf[_Row](name="technique", kind=Kind.TEXT, value=lambda row: row.technique),
    ColumnOf[_Row](name="why there is no strategy", kind=Kind.TEXT, value=lambda row: row.reason),
)


def table(by_framework: Mapping[str, Mapping[str, str]]) -> Table:
    """One row per framework and technique. `by_framework`: the reason of each technique, by the framework's title."""
    rows = [
        _Row(framework, technique, reason)
        for framework, reasons in by_framework.items()
        for technique, reason in reasons.items()
    ]
    return make_table(COLUMNS, rows)


def section(cells: Sequence[Cell]) -> list[Section]:
    """What the frameworks of these cells did not offer when they were measured; none if nothing was recorded."""
    described = [cell.first.described for cell in cells]
    found = {said.framework: said.not_offered for said in described if said.not_offered}
    if not found:
        return []
    return [Section(TITLE, (paragraph(NOTE), table(found)))]
