"""What a report says of launches that shared their devices with others, ran with lowered clocks, or saw errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.formatting import conjunction, count
from harness.reporting.model import Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind
from harness.spec import TrialResult
from harness.spec.disturbances import DisturbanceKind, in_words

TITLE = "Disturbed launches"
NOTE = (
    "What was seen on the devices of a launch right before it, each second while it ran, and right after it. Such a "
    "launch is kept: its losses are right, and nobody knows how much the others did. Its times may be too long."
)
SORTS: dict[DisturbanceKind, str] = {
    "session": "other runs of the suite",
    "compute": "other processes on the devices",
    "graphics": "other processes on the devices",
    "memory": "other processes on the devices",
    "throttled": "lowered clocks",
    "ecc": "errors of a GPU",
    "xid": "errors of a GPU",
}
"""What the verdict calls each kind."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """One disturbance, and the launches of a cell in which it was seen."""

    cell: Cell
    words: str
    launches: tuple[int, ...]


COLUMNS = (
    ColumnOf[_Seen](name="cell", kind=Kind.TEXT, value=lambda row: row.cell.title),
    ColumnOf[_Seen](
        name="launches", kind=Kind.TEXT, value=lambda row: ", ".join(str(1 + launch) for launch in row.launches)
    ),
    ColumnOf[_Seen](name="seen", kind=Kind.TEXT, value=lambda row: row.words),
)


def sentence(results: Sequence[TrialResult]) -> list[str]:
    """How many launches were disturbed, and by what; nothing if none was."""
    disturbed = [result for result in results if result.conditions.disturbances]
    if not disturbed:
        return []
    were = "was" if len(disturbed) == 1 else "were"
    seen = {found.kind for result in disturbed for found in result.conditions.disturbances}
    by = conjunction([*dict.fromkeys(words for kind, words in SORTS.items() if kind in seen)])
    return [
        f"{count(len(disturbed), 'launch', 'launches')} of {len(results)} {were} disturbed, by {by}. "
        f'Times may be too long: see "{TITLE}".'
    ]


def section(cells: Sequence[Cell]) -> list[Section]:
    """What was seen, by cell and launch; nothing if no launch was disturbed."""
    rows = []
    for cell in cells:
        launches: dict[str, list[int]] = {}
        for result in cell.launches:
            for found in result.conditions.disturbances:
                words = in_words(found, result.conditions.hardware.gpus)
                launches.setdefault(words, []).append(result.spec.launch)
        rows += [_Seen(cell=cell, words=words, launches=tuple(numbers)) for words, numbers in launches.items()]
    return [Section(TITLE, (paragraph(NOTE), make_table(COLUMNS, rows)))] if rows else []
