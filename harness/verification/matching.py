"""Which row of a report's table is of which cell, and the comparison of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.spec.text import visible
from harness.verification.record import Cell
from harness.verification.report_text import Expected, Findings, Section, Table

Columns = Mapping[str, Callable[[Cell], Expected]]
Matched = Sequence[tuple[Mapping[str, str], Cell]]
IDENTITY = ("workload", "framework", "strategy", "track", "precision", "options", "devices", "hosts", "input")
SCALING, BEST = ("strong scaling", "weak scaling", "efficiency"), "over the best single"


def identify(found: Findings, section: str, table: Table, cells: Sequence[Cell]) -> Matched:
    """The rows of a table with their cells, by what the rows say of them."""
    headings = [name for name in IDENTITY if name in table.headings]
    known: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        known.setdefault(tuple(_identity(cell)[name] for name in headings), []).append(cell)
    matched = []
    for row in table.rows:
        key = tuple(row.get(name, "") for name in headings)
        if of_row := known.pop(key, None):
            matched.append((row, of_row[0]))
            found.known_by(section, " ".join(key))
            if len(of_row) > 1:
                found.not_verified.append(f"{section}, {' '.join(key)}: {len(of_row)} cells have this row's text")
            of_row[0].speedless |= row.get("status") == "disagrees"
        elif apart := [cell for cell in cells if _is_part(row, cell, headings)]:
            whole = max(apart, key=lambda cell: len(cell.options))
            whole.split = True
            found.not_verified.append(f"{section}, {' '.join(key)}: only a part of the launches of {whole.title}")
        else:
            found.differences.append(
                f"{section}, {' '.join(key)}: the record has no such cell, or the row is there twice"
            )
    for key in known:
        found.differences.append(f"{section}: the report has no row of {' '.join(key)}")
    return [(row, cell) for row, cell in matched if not cell.split]


def _identity(cell: Cell) -> dict[str, str]:
    """What a row says of its cell."""
    spec, training = cell.spec, cell.spec.get("training") or {}
    loader = training.get("input") == "loader"
    texts = {
        "workload": f"{spec['workload']} {spec['size']}",
        "framework": cell.framework,
        "strategy": spec["strategy"],
        "track": "tuned" if spec["track"] == "tuned" else cell.first["described"].get("untuned") or spec["track"],
        "precision": spec["precision"],
        "options": cell.options or "-",
        "devices": str(spec["devices"]),
        "hosts": str(cell.hosts),
        "input": f"loader, {training['workers']} workers" if loader else "resident",
    }
    return {name: visible(" ".join(text.split())) for name, text in texts.items()}


def _is_part(row: Mapping[str, str], cell: Cell, headings: Sequence[str]) -> bool:
    """Whether a row is of some launches of a cell: its options go on with a condition in which these differ."""
    own = _identity(cell)
    others = all(row.get(name) == own[name] for name in headings if name not in ("options", "precision"))
    return others and (cell.options == "" or row.get("options", "").startswith(f"{own['options']}, "))


def by_title(found: Findings, section: str, table: Table, cells: Sequence[Cell], *, parts: bool) -> Iterator[Any]:
    """The rows of a table with their cells, by title; those that share one, by order.
    `parts`: whether launches of some cells are in several rows."""
    for title in dict.fromkeys([*(row.get("cell", "") for row in table.rows), *(cell.title for cell in cells)]):
        rows = [row for row in table.rows if row.get("cell") == title]
        own = [cell for cell in cells if cell.title == title]
        if parts and (len(rows) != len(own) or any(cell.split for cell in own)):
            found.not_verified.append(f"{section}, {title}: launches of this cell are in several rows")
        elif len(rows) != len(own):
            found.differences.append(f"{section}, {title}: {len(rows)} rows in the report, {len(own)} by the record")
        else:
            found.known_by(section, " ".join([title] * len(rows)))
            yield from zip(rows, own, strict=True)


def compare(found: Findings, section: str, rows: Matched, columns: Columns) -> None:
    """Hold the numbers of a table against the record's."""
    for row, cell in rows:
        for heading, expected in columns.items():
            if heading in row:
                found.compare(section, f"{cell.title}, {heading}", row[heading], expected(cell))
    for heading, expected in columns.items():
        missing = [cell for row, cell in rows if heading not in row and _counts(heading, cell)]
        if any(expected(cell) for cell in missing) and (heading != BEST or len({cell.title for cell in missing}) > 1):
            found.differences.append(f"{section}: the column {heading!r} is missing")


def _counts(heading: str, cell: Cell) -> bool:
    """Whether a number of this cell makes a report have this column."""
    if heading in SCALING:
        return cell.spec["devices"] > 1 and cell.spec["platform"] != "cpu"
    if heading == BEST:
        return cell.spec["platform"] != "cpu"
    return heading != "waiting %" or cell.spec["training"]["input"] == "loader"


def table_of(found: Findings, sections: Sequence[Section], title: str, cells: Sequence[Any]) -> Table | None:
    """The table of the section with this title. That it is missing is a difference if it should have rows."""
    table = next((table for each in sections if each.title == title for table in each.tables[:1]), None)
    if table is None and cells:
        found.differences.append(f"{title}: the report has no such table, but the record has {len(cells)} rows for it")
    return table
