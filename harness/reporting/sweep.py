"""Sweeps: cells that differ in one option, a number or a choice. They are found in the results themselves.

A pipeline's measured time is compared with an ideal: equal stages without any overhead. With T the single device's time
for the batch, p devices and m micro-batches, the ideal is T / p * (m + p - 1) / m: T shared by p devices, stretched by
the bubble. With protocol from_host there is no ideal, because most of that time the host makes batches, and no cut of
the network shortens that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.reporting.formatting import count, number, with_interval
from harness.reporting.summary import Cell
from harness.reporting.timelines import busy_stages, busy_words
from harness.results.launch_kinds import Comparisons
from harness.results.rounds import speed_ratio
from harness.spec import Role
from harness.spec.option import as_typed
from harness.spec.partition import bubble, micro_batches
from harness.statistics.intervals import Interval, scaled
from harness.statistics.verdicts import judge

FEWEST_VALUES = 2
FEWEST_OF_A_CURVE = 3  # two points do not show how the time follows from the number of micro-batches


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of the option, and the cell that has it. `ideal`: seconds per step."""

    value: float | str  # a choice is its name
    cell: Cell
    micro_batches: int | None
    ideal: float | None

    @property
    def mean(self) -> float:
        """Seconds per step at the cell's throughput."""
        assert self.cell.step_seconds is not None, "find takes timed cells"
        return self.cell.step_seconds

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the seconds per step; None for too few launches."""
        return step_interval(self.cell)

    @property
    def name(self) -> str:
        """The value as text."""
        return self.value if isinstance(self.value, str) else f"{self.value:g}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One strategy at several values of one option, in order."""

    option: str
    role: Role | None
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    single: Cell | None  # on a single device of the same framework, at the same batch

    @property
    def best(self) -> Point:
        """The point with the lowest mean time."""
        return min(self.points, key=lambda point: point.mean)

    @property
    def not_slower(self) -> list[Point]:
        """The other points that are not shown to be slower than the best: ties, what is not resolved, and what was
        launched once or elsewhere."""
        others = [point for point in self.points if point is not self.best]
        ratios = [(point, speed_ratio(self.best.cell.timed, point.cell.timed)) for point in others]
        known = [(point, ratio) for point, ratio in ratios if ratio is not None and ratio.degrees]
        verdicts = judge([ratio for _, ratio in known])
        slower = [point for (point, _), each in zip(known, verdicts, strict=True) if each.outcome == "faster"]
        return [point for point in others if point not in slower]


def find(cells: Sequence[Cell]) -> list[Sweep]:
    """All sweeps with at least two values that ran."""
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        for option in cell.spec.options:
            if cell.throughput is not None:
                spec = cell.spec
                others = tuple(sorted((k, str(v)) for k, v in spec.options.items() if k != option))
                where = (spec.framework, spec.strategy, spec.devices, spec.hosts, spec.protocol_name, spec.track)
                where += (spec.workload, spec.size, spec.precision, tuple(spec.chosen_settings.items()))
                where += (spec.global_batch, spec.optimizer, cell.first.conditions.data, cell.conditions)
                groups.setdefault((option, *where, others), []).append(cell)
    found = []
    singles = [cell for cell in cells if cell.spec.strategy == "single" and cell.estimate is not None]
    comparisons = Comparisons("divide")
    for (option, *_), group in groups.items():
        kinds = {isinstance(_value(cell, option), str) for cell in group}
        if len(kinds) > 1:  # neither a curve nor a choice
            continue
        if len(group) >= FEWEST_VALUES:
            ordered = sorted(group, key=lambda cell: _value(cell, option))
            single = _single(ordered[0], singles, comparisons)
            points = tuple(_point(cell, option, single) for cell in ordered)
            names = ordered[0].spec.roles.items()
            role: Role | None = next((role for role, name in names if name == option), None)
            found.append(Sweep(option=option, role=role, cells=tuple(ordered), points=points, single=single))
    return found


def _value(cell: Cell, option: str) -> Any:
    """A number, or the name of a choice as on the command line."""
    value = cell.spec.options[option]
    return as_typed(value) if isinstance(value, bool) else value


def step_interval(cell: Cell) -> Interval | None:
    """The 95% interval of a cell's seconds per step; None for too few launches."""
    found = cell.estimate.interval if cell.estimate else None
    if found is None:
        return None
    batch = cell.spec.global_batch
    return Interval(batch / found.high, batch / found.low if found.low else math.inf, found.confidence)


def _single(cell: Cell, singles: Sequence[Cell], comparisons: Comparisons) -> Cell | None:
    """The single device that the cell may be divided by, at the same batch. On CPU devices none: they share cores."""
    if cell.spec.platform == "cpu":
        return None
    for other in singles:
        same_batch = other.spec.global_batch == cell.spec.global_batch
        if same_batch and not comparisons.differences(cell.first, other.first):
            return other
    return None


def _point(cell: Cell, option: str, single: Cell | None) -> Point:
    pieces = ideal = None
    if option in (cell.spec.roles.get("micro_batches"), cell.spec.roles.get("micro_batch_size")):
        size = cell.spec.option("micro_batch_size")
        pieces = len(micro_batches(cell.spec.global_batch, size)) if size else cell.spec.option("micro_batches")
        # the formula of the ideal is that of all forward, then all backward
        one_by_one = "schedule" not in cell.spec.roles
        # a pipeline does not cut the host's work, so there is no ideal for from_host
        if single is not None and single.step_seconds and one_by_one and cell.spec.protocol == "resident":
            stages = cell.spec.devices
            ideal = single.step_seconds / stages / (1 - bubble(stages, pieces))
    return Point(value=_value(cell, option), cell=cell, micro_batches=pieces, ideal=ideal)


def sentences(sweep: Sweep) -> list[str]:
    """What the sweep shows."""
    best, others = sweep.best, sweep.not_slower
    name = sweep.cells[0].named(options=False)
    if sweep.cells[0].spec.platform == "cpu":
        return [f"{name}: {sweep.option} at {len(sweep.points)} values. On CPU devices their times show no order."]
    seconds = with_interval(1e3 * best.mean, scaled(best.interval, 1e3), unit=" ms")
    line = f"{name}: {sweep.option} {best.name} has the lowest mean time per step, {seconds}."
    if len(best.cell.timed) == 1:
        line += " One launch of each value shows no order."
    elif others:
        line += f" It is not shown to be faster than {', '.join(other.name for other in others)}."
    lines = [line]
    ratio = speed_ratio(best.cell.timed, sweep.single.timed) if sweep.single else None
    if sweep.single is not None and sweep.single.step_seconds and ratio:
        lines.append(
            f"At this value, it runs at {with_interval(ratio.value, ratio.interval)} times the speed of one device on "
            f"the whole batch ({number(1e3 * sweep.single.step_seconds)} ms per step)."
        )
    return lines + _distance(sweep) + _imbalance(sweep)


def _distance(sweep: Sweep) -> list[str]:
    """Why the measured curve is not the ideal one, as far as its own numbers show."""
    judged = sorted((p for p in sweep.points if p.micro_batches), key=lambda p: p.micro_batches or 0)
    if len(judged) < FEWEST_OF_A_CURVE:
        return []
    few, most = judged[0], judged[-1]
    fewer = [point for point in judged if point.micro_batches != most.micro_batches]
    if not fewer:  # a last micro-batch that is short makes equal numbers of them
        return []
    many = fewer[-1]
    lines = []
    if few.ideal is not None and most.ideal is not None:
        lines.append(
            f"The ideal (equal stages, a bubble, no other overhead) falls from {number(1e3 * few.ideal)} ms with "
            f"{count(few.micro_batches or 0, 'micro-batch', 'micro-batches')} to {number(1e3 * most.ideal)} ms with "
            f"{most.micro_batches}."
        )
    added = (most.micro_batches or 0) - (many.micro_batches or 0)
    each = (most.mean - many.mean) / added
    if each > 0:
        total = each * (most.micro_batches or 0)
        share = total / most.mean
        over = " (more than 100%, because micro-batches do not all cost the same)" if share > 1 else ""
        lines.append(
            f"From {many.micro_batches} to {most.micro_batches} micro-batches, each additional one adds "
            f"{number(1e3 * each)} ms although the number of samples is the same: the cost of one more round of "
            f"launches, kernels and copies. At {sweep.option} {most.name}, this cost would make up {100 * share:.1f}% "
            f"of the step{over}."
        )
    return lines


def _imbalance(sweep: Sweep) -> list[str]:
    """How unequal the stages of the best cell are, if its step was traced."""
    cell = next(cell for cell, point in zip(sweep.cells, sweep.points, strict=True) if point is sweep.best)
    spans = cell.first.spans
    if not spans:
        return []
    busy = busy_stages(spans)
    share = 100 * (max(busy) / statistics.fmean(busy) - 1)
    return [
        f"In the traced step at {sweep.option} {sweep.best.name}, the stages were busy for {busy_words(spans)} ms. The "
        f"busiest stage was busy {share:.0f}% longer than the average stage."
    ]
