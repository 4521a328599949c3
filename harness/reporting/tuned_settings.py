"""The settings of the tuned track, each with its source, and the strategies that are exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import FrameworkSpec, Setting, registry


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A setting of a framework, and whether the tuned cells used it: for each cell, on or off."""

    framework: FrameworkSpec
    setting: Setting
    on: tuple[bool, ...]


def _used(row: _Row) -> str:
    return "on" if all(row.on) else "off" if not any(row.on) else "on in some cells"


COLUMNS = (
    ColumnOf[_Row](name="framework", kind=Kind.TEXT, value=lambda row: row.framework.title),
    ColumnOf[_Row](name="setting", kind=Kind.TEXT, value=lambda row: row.setting.name),
    ColumnOf[_Row](name="used", kind=Kind.TEXT, value=_used),
    ColumnOf[_Row](name="what it does", kind=Kind.TEXT, value=lambda row: row.setting.summary),
    ColumnOf[_Row](name="source", kind=Kind.TEXT, value=lambda row: row.setting.source),
)


def table(cells: Sequence[Cell]) -> Table | None:
    """One row per setting of the frameworks that have a tuned cell; None if there is none."""
    tuned = [cell for cell in cells if cell.spec.track == "tuned"]
    rows = []
    for spec in _frameworks(tuned):
        specs = [cell.spec for cell in tuned if cell.spec.framework == spec.name]
        for setting in spec.settings:
            on = tuple(each.settings.get(setting.name, False) for each in specs)
            rows.append(_Row(framework=spec, setting=setting, on=on))
    return make_table(COLUMNS, rows) if rows else None


def exceptions(cells: Sequence[Cell]) -> list[str]:
    """What each tuned strategy sets differently from its framework's others, or cannot use, and why."""
    lines = []
    tuned = [cell for cell in cells if cell.spec.track == "tuned"]
    for spec in _frameworks(tuned):
        ran = {cell.spec.strategy for cell in tuned if cell.spec.framework == spec.name}
        for strategy in (strategy for strategy in spec.strategies if strategy.name in ran):
            title = f"{spec.title} {strategy.name}"
            if strategy.tuned:
                what = " and ".join(f"{name} {_word(value)}" for name, value in strategy.tuned.items())
                source = f" ({strategy.tuned_source})" if strategy.tuned_source else ""
                lines.append(f"{title} has {what}, because {strategy.tuned_because}{source}.")
            lines += [f"{title} runs without {name}, because {why}." for name, why in strategy.without.items()]
    return lines


def _frameworks(cells: Sequence[Cell]) -> list[FrameworkSpec]:
    names = dict.fromkeys(cell.spec.framework for cell in cells)
    return [registry.framework(name) for name in names if name in registry.packages()]


def _word(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
