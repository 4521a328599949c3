"""After the last timed block: is what was timed the program whose curve was compared?

Each inspection looks at the program as it is then, outside the timed part, and returns checks. A failed check voids the
launch: harness/results/judge.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.spec import Check
from harness.worker.context import Context

Inspection = Callable[[Context, Sequence[Any]], Iterable[Check]]
"""Called on every rank at the same time, with the batches that the timed blocks used. It may make steps."""

INSPECTIONS: tuple[Inspection, ...] = ()
"""In this order. An inspection that changes the program's state comes after those that look at it."""


def inspect(context: Context, resident: Sequence[Any]) -> None:
    """Make all inspections, and note their checks."""
    draft = context.draft
    for inspection in INSPECTIONS:
        draft.progress(f"inspecting the timed program: {inspection.__name__.replace('_', ' ')}")
        assert draft.answer.timing is not None
        draft.note_timing(checks=(*draft.answer.timing.checks, *inspection(context, resident)))
