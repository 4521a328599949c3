"""Ladders of settings: cells of one strategy that differ in settings alone, each with all settings of the one before.

They are found in the results themselves, however they were asked for (--track ladder plans them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.summary import Cell


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A cell of a ladder. `below`: the cell on the rung before it; None for the first one."""

    cell: Cell
    first: Cell
    below: Cell | None = None

    @property
    def turned_on(self) -> str:
        """What this rung has beyond the one before it."""
        before = switches(self.below) if self.below else frozenset()
        added = sorted(switches(self.cell) - before)
        return ", ".join(added) or "no setting"


def switches(cell: Cell) -> frozenset[str]:
    """The settings that are on in a cell. Several steps in a call count as one."""
    on = {name for name, value in cell.spec.settings.items() if value}
    steps = cell.spec.steps_per_call
    return frozenset(on | ({f"{steps} steps per call"} if steps > 1 else set()))


def find(cells: Sequence[Cell]) -> list[Rung]:
    """The rungs of all ladders with at least two, from the bottom to the top."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.throughput is not None and cell.status == "ok" and cell.spec.training is None:
            groups.setdefault(_but_for_settings(cell), []).append(cell)
    return [rung for group in groups.values() for rung in _climb(group)]


def _climb(group: Sequence[Cell]) -> list[Rung]:
    """The rungs of one ladder. A cell that lacks a setting of the rung below is none."""
    rungs: list[Rung] = []
    for cell in sorted(group, key=lambda cell: len(switches(cell))):
        if not rungs:
            rungs.append(Rung(cell=cell, first=cell))
        elif switches(cell) > switches(rungs[-1].cell):
            rungs.append(Rung(cell=cell, first=rungs[0].cell, below=rungs[-1].cell))
    return rungs if len(rungs) > 1 else []


def _but_for_settings(cell: Cell) -> str:
    """What all rungs of a ladder share, as text, because mappings have no hash."""
    spec = cell.spec
    what = (spec.framework, spec.workload, spec.size, spec.strategy, spec.options, spec.devices, spec.hosts)
    how = (spec.precision, spec.optimizer, spec.normalization, spec.accumulation_steps, spec.protocol_name)
    how += (spec.global_batch,)
    return repr((*what, *how, cell.first.conditions.data, cell.conditions))
