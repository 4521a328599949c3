"""The table of a sweep, one row per value of the option."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.sweep import Point, Sweep
from harness.reporting.values import Kind, Measured, Value
from harness.results.rounds import speed_ratio
from harness.statistics.intervals import scaled


def table(sweep: Sweep) -> Table:
    """The step time at each value, beside the ideal and the speed of a single device where these are known."""
    return make_table(_columns(sweep), sweep.points)


def _columns(sweep: Sweep) -> tuple[ColumnOf[Point], ...]:
    return (
        ColumnOf[Point](name=sweep.option, kind=_kind(sweep), value=lambda point: point.value),
        ColumnOf[Point](
            name="micro-batches",
            kind=Kind.COUNT,
            value=lambda point: point.micro_batches,
            shown=lambda points: (
                sweep.role != "micro_batches" and any(point.micro_batches is not None for point in points)
            ),
        ),
        ColumnOf[Point](
            name="mean step",
            kind=Kind.ROUNDED,
            value=lambda point: Measured(1e3 * point.mean, scaled(point.interval, 1e3)),
            unit="ms",
        ),
        ColumnOf[Point](
            name="ideal",
            kind=Kind.ROUNDED,
            value=lambda point: None if point.ideal is None else 1e3 * point.ideal,
            unit="ms",
            shown=_has_ideal,
        ),
        ColumnOf[Point](
            name="measured / ideal",
            kind=Kind.HUNDREDTHS,
            value=lambda point: None if point.ideal is None else point.mean / point.ideal,
            shown=_has_ideal,
        ),
        ColumnOf[Point](
            name="speed / single",
            kind=Kind.HUNDREDTHS,
            value=lambda point: _speed(sweep, point),
            shown=lambda points: sweep.single is not None,
        ),
    )


def _kind(sweep: Sweep) -> Kind:
    """The values of an option are numbers or choices."""
    choices = any(isinstance(point.value, str) for point in sweep.points)
    return Kind.TEXT if choices else Kind.SHORTEST


def _has_ideal(points: Sequence[Point]) -> bool:
    return any(point.ideal is not None for point in points)


def _speed(sweep: Sweep, point: Point) -> Value:
    ratio = speed_ratio(point.cell.timed, sweep.single.timed) if sweep.single else None
    return None if ratio is None else Measured(ratio.value, ratio.interval)
