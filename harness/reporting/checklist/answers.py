"""The answer to one requirement: its outcome, and the figures that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.reporting.formatting import count
from harness.reporting.summary import Cell

Outcome = Literal["pass", "fail", "not known", "does not apply"]
WORST_FIRST: tuple[Outcome, ...] = ("fail", "not known", "pass", "does not apply")
NAMED = 3  # so many cells are named; the others are counted


@dataclass(frozen=True, kw_only=True)
class Answer:
    """ "fail": the record shows that the requirement is not met. "not known": the record does not hold what would show
    it. "does not apply": the report makes no claim that the requirement is about."""

    outcome: Outcome
    figures: str


def judged(passed: bool, figures: str) -> Answer:
    """What the record shows."""
    return Answer(outcome="pass" if passed else "fail", figures=figures)


def unknown(reason: str) -> Answer:
    """What the record does not hold."""
    return Answer(outcome="not known", figures=reason)


def not_applicable(reason: str) -> Answer:
    """What the report claims nothing about."""
    return Answer(outcome="does not apply", figures=reason)


def together(*parts: Answer) -> Answer:
    """A requirement with several parts: the worst of their outcomes, and first the figures of the worst parts."""
    ordered = sorted(parts, key=lambda part: WORST_FIRST.index(part.outcome))
    figures = "; ".join(dict.fromkeys(part.figures for part in ordered if part.figures))
    return Answer(outcome=ordered[0].outcome, figures=figures)


def of_cells(wanting: Sequence[Cell], cells: Sequence[Cell], what: str) -> Answer:
    """Passes if no cell is wanting. `what`: what the others have, as in "8 of 10 cells have a proof; not: ..."."""
    return judged(not wanting, _listed(wanting, cells, what))


def recorded(wanting: Sequence[Cell], cells: Sequence[Cell], what: str) -> Answer:
    """The same for something that the rows of the wanting cells do not hold."""
    return unknown(_listed(wanting, cells, what)) if wanting else judged(True, _listed(wanting, cells, what))


def _listed(wanting: Sequence[Cell], cells: Sequence[Cell], what: str) -> str:
    found = f"{what} in {len(cells) - len(wanting)} of {count(len(cells), 'cell')}"
    return f"{found}, not in {names(wanting)}" if 0 < len(wanting) < len(cells) else found


def names(cells: Sequence[Cell]) -> str:
    """The first cells by name, and how many others there are."""
    listed = ", ".join(cell.title for cell in cells[:NAMED])
    return listed + (f" and {len(cells) - NAMED} more" if len(cells) > NAMED else "")
