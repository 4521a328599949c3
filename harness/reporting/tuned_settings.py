"""The settings of the tuned track, each with its source, and the strategies that are exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting import naming
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.formatting import conjunction
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import DescribedSetting


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A setting of a framework, and which of the tuned strategies used it."""

    framework: str
    setting: DescribedSetting
    on: tuple[str, ...]
    off: tuple[str, ...]


def _used(row: _Row) -> str:
    return "off" if not row.on else "on" if not row.off else f"on in {conjunction(row.on)}"


COLUMNS = (
    ColumnOf[_Row](name="framework", kind=Kind.TEXT, value=lambda row: row.framework),
    ColumnOf[_Row](name="setting", kind=Kind.TEXT, value=lambda row: row.setting.name),
    ColumnOf[_Row](name="used", kind=Kind.TEXT, value=_used),
    ColumnOf[_Row](name="what it does", kind=Kind.TEXT, value=lambda row: row.setting.summary),
    ColumnOf[_Row](name="source", kind=Kind.TEXT, value=lambda row: row.setting.source),
)


def table(cells: Sequence[Cell]) -> Table | None:
    """One row per setting of the frameworks that have a tuned cell; None if there is none."""
    tuned = [cell for cell in cells if cell.spec.track == "tuned"]
    settings = dict.fromkeys(
        (naming.framework(c.first), setting) for c in tuned for setting in c.first.described.settings
    )
    rows = []
    for framework, setting in settings:
        own = [cell for cell in tuned if naming.framework(cell.first) == framework]
        used = {on: _strategies(own, setting.name, on=on) for on in (True, False)}
        rows.append(_Row(framework=framework, setting=setting, on=used[True], off=used[False]))
    return make_table(COLUMNS, rows) if rows else None


def _strategies(cells: Sequence[Cell], setting: str, *, on: bool) -> tuple[str, ...]:
    """The strategies with a cell in which a setting is on, or off."""
    return tuple(dict.fromkeys(c.spec.strategy for c in cells if c.spec.settings.get(setting, False) == on))


def exceptions(cells: Sequence[Cell]) -> list[str]:
    """What each tuned strategy sets differently from its framework's others, or cannot use, and why."""
    lines: dict[str, None] = {}
    for cell in (cell for cell in cells if cell.spec.track == "tuned"):
        said, title = cell.first.described, f"{naming.framework(cell.first)} {cell.spec.strategy}"
        if said.tuned:
            what = " and ".join(f"{name} {_word(value)}" for name, value in said.tuned.items())
            source = f" ({said.tuned_source})" if said.tuned_source else ""
            lines[f"{title} has {what}, because {said.tuned_because}{source}."] = None
        lines |= dict.fromkeys(f"{title} runs without {name}, because {why}." for name, why in said.without.items())
    return list(lines)


def efforts(cells: Sequence[Cell]) -> list[str]:
    """How the settings of each framework with a tuned cell were found."""
    tuned = [cell for cell in cells if cell.spec.track == "tuned"]
    lines = {}
    for cell in tuned:
        title, found = naming.framework(cell.first), cell.first.described.tuning
        if found is not None:
            versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
            lines[
                f"{title}'s settings were searched for on {found.date} with a budget of {found.budget_seconds:g} s, of "
                f"which {found.spent_seconds:g} s were used, on one {found.device} ({found.workload}; {versions}). "
                f"Tried: {', '.join(found.tried)}. Data: {found.probe} of the suite. Later settings of the tuned track "
                "come from other probes: docs/tracks.md says which, and which of the attempts were stopped."
            ] = None
    return list(lines)


def _word(value: object) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
