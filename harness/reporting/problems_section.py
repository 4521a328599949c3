"""What a report says of the launches that did not run, and of those that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import CodeBlock, Node, Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind

LOGS = "logs/ in the folder of each run holds the output of every process."


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Planned launches of a cell with the same outcome: their numbers, from 1; () if the cell was skipped."""

    cell: Cell
    launches: tuple[int, ...]
    status: str
    reason: str


COLUMNS = (
    ColumnOf[Problem](name="cell", kind=Kind.TEXT, value=lambda problem: problem.cell.title),
    ColumnOf[Problem](name="launches", kind=Kind.TEXT, value=lambda problem: ", ".join(map(str, problem.launches))),
    ColumnOf[Problem](name="status", kind=Kind.TEXT, value=lambda problem: problem.status),
    ColumnOf[Problem](name="reason", kind=Kind.TEXT, value=lambda problem: problem.reason),
)


def section(cells: Sequence[Cell]) -> list[Node]:
    """What did not run, with the first traceback of each cell."""
    troubled = [cell for cell in cells if cell.status != "ok"]
    if not troubled:
        return []
    rows = [problem for cell in troubled for problem in _problems_of(cell)]
    body: list[Node] = [make_table(COLUMNS, rows), paragraph(LOGS)]
    for cell in troubled:
        trace = next((result.traceback for result in cell.launches if result.traceback), "")
        if trace:
            body += [paragraph(f"First failing rank of {cell.title}:"), CodeBlock(trace)]
    return [Section("What did not run, and why", tuple(body))]


def _problems_of(cell: Cell) -> list[Problem]:
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for result in cell.launches:
        if result.status != "ok":
            key = (result.status, result.reason)
            number = () if result.status == "skipped" else (result.spec.launch + 1,)
            found[key] = (*found.get(key, ()), *number)
    return [
        Problem(cell=cell, launches=launches, status=status, reason=reason)
        for (status, reason), launches in found.items()
    ]
