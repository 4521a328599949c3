"""The numbers of ladders of settings and of sweeps of an option, computed again from the record."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from harness.verification.matching import Columns, compare, table_of
from harness.verification.record import TASK, Cell, Record
from harness.verification.report_text import Expected, Findings, Section, fixed, rounded, supported
from harness.verification.tables import over

LADDER = "Ladder of settings"
ALIKE = (*TASK, "framework", "strategy", "devices", "global_batch")


def ladders(found: Findings, record: Record, sections: Sequence[Section]) -> None:
    """Hold each rung of each ladder, over the one before it and over the first, against the record."""
    rungs = list(_rungs(record))
    table = table_of(found, sections, LADDER, rungs)
    if table is None or len(table.rows) != len(rungs):
        if table:
            found.differences.append(f"{LADDER}: {len(table.rows)} rows in the report, {len(rungs)} by the record")
        return
    below, first = ({each[0]: each[number] for each in rungs} for number in (1, 2))
    for row, (cell, before, _) in zip(table.rows, rungs, strict=True):
        added = ", ".join(sorted(_switches(cell) - (_switches(before) if before else set()))) or "no setting"
        own = f"{cell.framework} {cell.spec['strategy']} {cell.spec['devices']}: {added}"
        said = "{framework} {strategy} {devices}: {turned on}".format_map({**row})
        found.same(LADDER, "a rung", said, own)
    columns: Columns = {
        "throughput": lambda cell: supported(cell.speed.numbers) if cell.speed else [],
        "over the previous": lambda cell: over(cell, below[cell]),
        "over the first": lambda cell: over(cell, first[cell]),
    }
    compare(found, LADDER, [(row, cell) for row, (cell, *_) in zip(table.rows, rungs, strict=True)], columns)


def _switches(cell: Cell) -> set[str]:
    """The settings that are on."""
    steps = cell.spec.get("steps_per_call", 1)
    on = {name for name, value in cell.spec["settings"].items() if value}
    return on | ({f"{steps} steps per call"} if steps > 1 else set())


def _rungs(record: Record) -> Iterator[tuple[Cell, Cell | None, Cell | None]]:
    """Each rung of each ladder, the one below it, and the first: cells that differ in settings alone, each with all
    settings of the one before."""
    groups: dict[str, list[Cell]] = {}
    for cell in record.timed:
        if cell.timed and cell.ok:
            names = (*ALIKE, "options", "normalization", "accumulation_steps")
            groups.setdefault(_key(cell, *(cell.spec.get(name) for name in names)), []).append(cell)
    for group in groups.values():
        climbed: list[Cell] = []
        for cell in sorted(group, key=lambda cell: len(_switches(cell))):
            if not climbed or _switches(cell) > _switches(climbed[-1]):
                climbed.append(cell)
        for number, cell in enumerate(climbed if len(climbed) > 1 else ()):
            yield cell, climbed[number - 1] if number else None, climbed[0] if number else None


def _key(cell: Cell, *parts: Any) -> str:
    return json.dumps([*parts, cell.first["conditions"].get("data")], sort_keys=True)


def sweeps(found: Findings, record: Record, sections: Sequence[Section]) -> None:
    """Hold the tables of sweeps against the record."""
    own = list(_sweeps(record))
    shown = [each for each in sections if each.title.startswith("Sweep of ")]
    plain = [f"Sweep of {option} ({cells[0].spec['protocol']})" for option, cells in own]
    titles = [
        f"{title}: {cells[0].title_without_options}" if plain.count(title) > 1 else title
        for title, (_, cells) in zip(plain, own, strict=True)
    ]
    if [each.title for each in shown] != titles:
        found.differences.append(f"sweeps: the report has {[e.title for e in shown]}, the record gives {titles}")
        return
    for section, (option, cells) in zip(shown, own, strict=True):
        rows = section.tables[0].rows if section.tables else []
        values = [str(_value(cell, option)) for cell in cells]
        found.same(section.title, option, " ".join(row.get(option, "") for row in rows), " ".join(values))
        if len(rows) == len(cells):
            columns = _columns(record, option, cells[0])
            compare(found, section.title, list(zip(rows, cells, strict=True)), columns)


def _columns(record: Record, option: str, cell: Cell) -> Columns:
    """The columns of the sweep that this cell is of."""
    base = record.base(cell) if cell.spec["platform"] != "cpu" else None  # CPU devices share cores
    single = base if base and cell.alike(base, "global_batch") else None
    columns = {
        "mean step ms": step,
        "ideal ms": lambda cell: rounded(1e3 * ideal) if (ideal := _ideal(cell, option, single)) else [],
        "measured / ideal": lambda cell: fixed(
            cell.step_seconds / ideal if (ideal := _ideal(cell, option, single)) else None, 2
        ),
        "speed / single": partial(over, base=single),
    }
    if option == cell.spec.get("roles", {}).get("micro_batch_size"):
        columns["micro-batches"] = lambda cell: fixed(_pieces(cell, option))
    return columns


def step(cell: Cell) -> Expected:
    """Milliseconds per step, with their interval."""
    value, *ends = cell.speed.numbers if cell.speed else (math.nan,)
    batch = 1e3 * cell.spec["global_batch"]
    return supported([batch / number if number else math.inf for number in (value, *reversed(ends))])


def _ideal(cell: Cell, option: str, single: Cell | None) -> float | None:
    """Seconds per step of a pipeline of equal stages without overhead (Huang et al. 2019, arXiv:1811.06965)."""
    pieces, stages = _pieces(cell, option), cell.spec["devices"]
    if not (pieces and single) or cell.spec["protocol"] != "resident" or "schedule" in cell.spec.get("roles", {}):
        return None
    return single.step_seconds / stages * (pieces + stages - 1) / pieces


def _pieces(cell: Cell, option: str) -> int | None:
    """The number of micro-batches, if the option decides it."""
    roles, value = cell.spec.get("roles", {}), cell.spec["options"][option]
    if option == roles.get("micro_batch_size"):
        return math.ceil(cell.spec["global_batch"] / value)
    return value if option == roles.get("micro_batches") else None


def _value(cell: Cell, option: str) -> Any:
    value = cell.spec["options"][option]
    return str(value).lower() if isinstance(value, bool) else value


def _sweeps(record: Record) -> Iterator[tuple[str, list[Cell]]]:
    """Cells that differ in one option: two of them or more."""
    groups: dict[str, tuple[str, list[Cell]]] = {}
    for cell in record.timed:
        for option in cell.spec["options"] if cell.timed else ():
            others = {name: value for name, value in cell.spec["options"].items() if name != option}
            shared = (cell.spec.get(name) for name in (*ALIKE, "track", "chosen_settings"))
            groups.setdefault(_key(cell, option, others, *shared), (option, []))[1].append(cell)
    for option, cells in groups.values():
        texts = {isinstance(_value(cell, option), str) for cell in cells}
        if len(texts) == 1 and len(cells) > 1:
            yield option, sorted(cells, key=lambda cell: _value(cell, option))
