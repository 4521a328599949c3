"""The columns of the result table that divide a cell's speed by that of a single device."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import ColumnOf
from harness.reporting.summary import Cell
from harness.reporting.values import Kind, Measured, Missing, Value
from harness.statistics.intervals import FEWEST
from harness.statistics.ratios import Ratio

RATIO_MEANING = (
    "The ideal is the number of devices. A ratio is formed within each round; the bracket is its 95% interval, which "
    f"needs {FEWEST} rounds."
)


def _over_single(cell: Cell, *, weak: bool) -> Value:
    if cell.no_base:
        return Missing(f"other {', '.join(difference.name for difference in cell.no_base)}")
    if cell.apart_from_base:
        return Missing("another machine")
    return _ratio(cell.over_single) if cell.weak == weak or cell.spec.devices == 1 else None


def _is_scaling(cell: Cell, *, weak: bool) -> bool:
    """Whether this column says something of a cell on several devices: a ratio, or why there is none.

    Virtual CPU devices are parts of one processor. How speeds scale with their number says nothing.
    """
    if cell.spec.platform == "cpu":
        return False
    known = bool(cell.over_single or cell.no_base or cell.apart_from_base)
    return known and cell.weak == weak and cell.spec.devices > 1


def _ratio(ratio: Ratio | None) -> Value:
    if ratio is None:
        return None
    return Measured(ratio.value, ratio.interval if ratio.standard_error else None)  # a cell over itself varies not


def _over_best(cell: Cell) -> Value:
    return _ratio(cell.over_best)


def _single(cells: Sequence[Cell]) -> str:
    same_track = " on the same track" if any(cell.spec.track == "tuned" for cell in cells) else ""
    return f"that of single in the same framework{same_track}"


def _efficiency(cell: Cell) -> Value:
    """Percent of the ideal, for cells on several devices."""
    if cell.over_single is None or cell.spec.devices == 1 or cell.spec.platform == "cpu":
        return None
    return 100 * cell.over_single.value / cell.spec.devices


SCALING = (
    ColumnOf[Cell](
        name="strong scaling",
        kind=Kind.HUNDREDTHS,
        value=lambda cell: _over_single(cell, weak=False),
        shown=lambda cells: any(_is_scaling(cell, weak=False) for cell in cells),
        meaning=lambda cells: f"speed divided by {_single(cells)}, at the same global batch. {RATIO_MEANING}",
    ),
    ColumnOf[Cell](
        name="weak scaling",
        kind=Kind.HUNDREDTHS,
        value=lambda cell: _over_single(cell, weak=True),
        shown=lambda cells: any(_is_scaling(cell, weak=True) for cell in cells),
        meaning=lambda cells: f"speed divided by {_single(cells)}, at the same batch per device. {RATIO_MEANING}",
    ),
    ColumnOf[Cell](
        name="efficiency",
        kind=Kind.PERCENT,
        value=_efficiency,
        if_known=True,
        meaning="scaling divided by the number of devices. 100% is ideal.",
        on_screen=False,
    ),
    ColumnOf[Cell](
        name="over the best single",
        kind=Kind.HUNDREDTHS,
        value=_over_best,
        shown=lambda cells: any(cell.over_best for cell in cells if cell.spec.platform != "cpu") and len(cells) > 1,
        meaning="speed divided by that of the fastest single of all frameworks and tracks.",
        on_screen=False,
    ),
)
