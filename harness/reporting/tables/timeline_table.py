"""The table of traced steps: how busy the stages were, beside the idle share by the bubble formula."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.timelines import (
    busy_stages,
    idle_share,
    micro_batch_count,
    overlap_share,
    traced_seconds,
)
from harness.reporting.values import Beside, Kind, PerStage
from harness.spec.partition import bubble


def table(cells: Sequence[Cell]) -> Table:
    """One row per cell with a traced step."""
    return make_table(COLUMNS, [cell for cell in cells if cell.first.spans])


def _traced_and_timed(cell: Cell) -> Beside:
    timed = None if cell.step_seconds is None else 1e3 * cell.step_seconds
    return Beside(1e3 * traced_seconds(cell.first.spans), timed)


def _bubble_percent(cell: Cell) -> float:
    spans = cell.first.spans
    return 100 * bubble(len(busy_stages(spans)), micro_batch_count(spans))


COLUMNS = (
    ColumnOf[Cell](name="cell", kind=Kind.TEXT, value=lambda cell: cell.title),
    ColumnOf[Cell](name="micro-batches", kind=Kind.COUNT, value=lambda cell: micro_batch_count(cell.first.spans)),
    ColumnOf[Cell](
        name="traced (timed)",
        kind=Kind.ROUNDED,
        value=_traced_and_timed,
        unit="ms",
        shown_as="ms, traced (timed)",
        meaning=(
            "time from the first forward to the last backward. Tracing changes the step, so the time of a step in the "
            "timed blocks is given in brackets."
        ),
    ),
    ColumnOf[Cell](
        name="busy",
        kind=Kind.ROUNDED,
        value=lambda cell: PerStage(tuple(1e3 * seconds for seconds in busy_stages(cell.first.spans))),
        unit="ms",
        shown_as="busy ms per stage",
        meaning=(
            "time from the first kernel of a micro-batch to its last, including pauses between kernels. A stage's "
            "backward lasts from its output's gradient to its input's; the first stage's input gets a gradient only to "
            "mark this end. In JAX's pipeline_spmd, backward runs the forward again, and ends with all gradients."
        ),
    ),
    ColumnOf[Cell](
        name="overlap",
        kind=Kind.PERCENT,
        value=lambda cell: 100 * overlap_share(cell.first.spans),
        unit="%",
        shown_as="overlap",
        meaning="share of the traced time in which more than one stage is busy.",
    ),
    ColumnOf[Cell](
        name="idle",
        kind=Kind.PERCENT,
        value=lambda cell: 100 * idle_share(cell.first.spans),
        unit="%",
        shown_as="idle, at least",
        meaning=(
            "share of the stages' time that is not busy time. It is a lower bound, because busy times include pauses."
        ),
    ),
    ColumnOf[Cell](
        name="bubble",
        kind=Kind.PERCENT,
        value=_bubble_percent,
        unit="%",
        shown_as="bubble by formula",
        meaning="idle share of equal stages without any overhead.",
    ),
)
