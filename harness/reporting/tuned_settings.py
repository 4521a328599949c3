"""The settings of the tuned track, each with its source, and the strategies that are exceptions."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from harness.reporting.summary import Cell
from harness.spec import FrameworkSpec, registry


def table(cells: Sequence[Cell]) -> pd.DataFrame | None:
    """One row per setting of the frameworks that have a tuned cell; None if there is none."""
    tuned = [cell for cell in cells if cell.spec.track == "tuned"]
    rows = []
    for spec in _frameworks(tuned):
        for setting in spec.settings:
            on = [cell.spec.settings.get(setting.name, False) for cell in tuned if cell.spec.framework == spec.name]
            rows.append(
                {
                    "framework": spec.title,
                    "setting": setting.name,
                    "used": "on" if all(on) else "off" if not any(on) else "on in some cells",
                    "what it does": setting.summary,
                    "source": setting.source,
                }
            )
    return pd.DataFrame(rows) if rows else None


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
