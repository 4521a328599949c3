"""The environment variables of a report's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.reporting import naming
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Node, Table, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.results.condition_rules import PLACES


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """What cells have in common whose workers had the same environment. `own`: variables that not all cells had."""

    framework: str
    devices: int
    processes: int | None  # None if the cell failed before it was known
    cores: int
    start_method: str
    own: str


def listing(cells: Sequence[Cell]) -> tuple[Node, ...]:
    """The workers' environment variables: those of each group of similar cells, then those of all."""
    seen = [cell for cell in cells if cell.first.conditions.environment]
    if not seen:
        return (paragraph("none"),)
    common = set.intersection(*(set(_of_cell(cell).items()) for cell in seen))
    groups: dict[_Alike, list[Cell]] = {}
    for cell in seen:
        first = cell.first
        alike = _Alike(
            framework=naming.framework(first),
            devices=cell.spec.devices,
            processes=len(first.block_seconds) or len(first.peak_bytes) or None,
            cores=first.conditions.cores,
            start_method=first.conditions.start_method,
            own=_assignments(set(_of_cell(cell).items()) - common),
        )
        groups.setdefault(alike, []).append(cell)
    rows = _table(groups, on_cpu=seen[0].spec.platform == "cpu")
    return (rows, paragraph(f"Common to all: {_assignments(common)}."))


def _of_cell(cell: Cell) -> dict[str, str]:
    """Those of its workers. Where its launches ran in turn on several devices: on which."""
    found = dict(cell.first.conditions.environment)
    for name in PLACES:
        places = {text for launch in cell.launches if (text := launch.conditions.environment.get(name)) is not None}
        if len(places) > 1:
            found[name] = " or ".join(sorted(places, key=lambda text: (len(text), text)))  # 2 comes before 10
    return found


def _table(groups: Mapping[_Alike, Sequence[Cell]], *, on_cpu: bool) -> Table:
    # on GPUs a process may run on every core, and only the size of its thread pools is limited
    threads = "cores per process" if on_cpu else "threads per process"
    columns = (
        ColumnOf[_Alike](name="framework", kind=Kind.TEXT, value=lambda alike: alike.framework),
        ColumnOf[_Alike](name="devices", kind=Kind.COUNT, value=lambda alike: alike.devices),
        ColumnOf[_Alike](name="processes", kind=Kind.COUNT, value=lambda alike: alike.processes),
        ColumnOf[_Alike](name=threads, kind=Kind.COUNT, value=lambda alike: alike.cores),
        ColumnOf[_Alike](
            name="start method",
            kind=Kind.TEXT,
            value=lambda alike: alike.start_method or None,
            shown=lambda rows: any(alike.start_method == "fork" for alike in rows),
        ),
        ColumnOf[_Alike](
            name="strategies",
            kind=Kind.TEXT,
            value=lambda alike: ", ".join(dict.fromkeys(cell.spec.strategy for cell in groups[alike])),
        ),
        ColumnOf[_Alike](name="additional variables", kind=Kind.TEXT, value=lambda alike: alike.own),
    )
    return make_table(columns, list(groups))


def _assignments(variables: set[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(variables)) or "none"
