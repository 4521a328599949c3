"""How far the numbers of a report can be relied on: their variance, and whether what was measured was steady."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean, median

from harness.reporting.columns import ColumnOf, make_table, meanings
from harness.reporting.formatting import supported
from harness.reporting.model import Node, Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind, Value
from harness.results.host_bound import HOST_SHARE, host_bound, host_share
from harness.results.single_steps import of_all, percentile, synchronization_seconds
from harness.spec import TrialResult
from harness.statistics import steadiness
from harness.statistics.estimates import UNSTABLE
from harness.statistics.ratios import Ratio
from harness.statistics.steadiness import Finding
from harness.statistics.variance import Variance, components
from harness.statistics.verdicts import LEAST_MARGIN, launches_needed

NOTE = (
    "Launches are the unit of replication. Blocks within a launch are not independent of each other, so they only show "
    "whether what was measured was steady. What was not is flagged, and nothing is left out of a mean."
)


def sentences(cells: Sequence[Cell]) -> list[str]:
    """Which numbers are rough, and which cells were not steady."""
    unstable = [(cell, cell.estimate) for cell in cells if cell.estimate is not None and cell.estimate.unstable]
    unsteady = [(cell, found) for cell in cells if (found := findings(cell))]
    lines = []
    if unstable:
        listed = "; ".join(
            f"{cell.title}, {supported(100 * each.relative_deviation, None)}%" for cell, each in unstable
        )
        lines.append(
            f"Unstable, with a standard deviation of at least {100 * UNSTABLE:.0f}% of the mean: {listed}. Their "
            "throughputs, and all ratios with them, are rough."
        )
    if unsteady:
        listed = "; ".join(f"{cell.title}, {words(found)}" for cell, found in unsteady)
        lines.append(f"Not steady while it was timed: {listed}.")
    if hosts := [cell for cell in cells if bound_by_host(cell)]:
        listed = "; ".join(cell.title for cell in hosts)
        lines.append(
            f"Host-bound, so that a faster GPU would not make them faster: {listed}. There the host takes at least "
            f"{100 * HOST_SHARE:.0f}% of a step to launch it."
        )
    return lines


def findings(cell: Cell) -> tuple[Finding, ...]:
    """What is not steady in a cell with resident batches. Other cells are not expected to be."""
    if cell.estimate is None or cell.spec.protocol != "resident":
        return ()
    return _findings(tuple(map(tuple, cell.block_steps)))


@cache
def _findings(blocks: tuple[tuple[float, ...], ...]) -> tuple[Finding, ...]:
    return tuple(steadiness.findings(blocks))


def words(found: Sequence[Finding]) -> str:
    """Findings in words: "a trend of -2.4% (launch 1)"."""
    return ", ".join(map(_in_words, found))


def _in_words(found: Finding) -> str:
    size = f"{100 * found.size:+.1f}%"
    if found.kind == "pattern":
        return f"all launches swing alike, by {size[1:]} from block to block"
    noun = "trend" if found.kind == "trend" else "change of level"
    numbers = ", ".join(str(1 + launch) for launch in found.launches)
    launches = f"launch {numbers}" if len(found.launches) == 1 else f"launches {numbers}"
    return f"a {noun} of the step time of {size} ({launches})"


def bound_by_host(cell: Cell) -> bool:
    """Whether more than half of a cell's launches are bound by their host."""
    return sum(bool(host_bound(result)) for result in cell.timed) > len(cell.timed) / 2


def rank_skew(cell: Cell) -> float | None:
    """How much longer the slowest rank takes for a block than the fastest, as a share of the block: the median over the
    blocks of all launches. None with a single rank."""
    blocks = [ranks for result in cell.timed for ranks in zip(*result.block_seconds, strict=True) if len(ranks) > 1]
    return median(1 - min(ranks) / max(ranks) for ranks in blocks) if blocks else None


def _of_steps(percent: float) -> Callable[[Cell], Value]:
    """A percentile of the single steps of all launches, in milliseconds."""

    def value(cell: Cell) -> Value:
        seconds = percentile(of_all(cell.timed), percent)
        return None if seconds is None else 1e3 * seconds

    return value


def _mean(of: Callable[[TrialResult], float | None], factor: float) -> Callable[[Cell], Value]:
    """The mean over the launches that have such a number, in another unit."""

    def value(cell: Cell) -> Value:
        known = [found for result in cell.timed if (found := of(result)) is not None]
        return factor * fmean(known) if known else None

    return value


def _launch_seconds(result: TrialResult) -> float | None:
    """Seconds that the host of the slowest rank takes to launch one tiny operation; None: not measured."""
    return max((each.launch_seconds for each in result.timings if each.launch_seconds is not None), default=None)


def _variance(cell: Cell) -> Variance:
    return _components(tuple(map(tuple, cell.block_steps)))


@cache
def _components(blocks: tuple[tuple[float, ...], ...]) -> Variance:
    return components(blocks)


def _percent(share: float | None) -> Value:
    return None if share is None else 100 * share


def _needed(cell: Cell) -> Value:
    """Launches for an interval of the margin, from the deviation of this cell's launches alone."""
    between = cell.estimate.relative_deviation if cell.estimate and cell.estimate.of == "launches" else None
    if not between:
        return None
    of_pairs = between * math.sqrt(2)  # two cells that vary independently of each other
    found = launches_needed(Ratio(value=1.0, deviation=of_pairs, standard_error=of_pairs, degrees=1, pairs=2))
    return "more than 1,000" if found is None else str(found)


def _number(
    name: str, value: Callable[[Cell], Value], *, unit: str = "", meaning: str = "", kind: Kind = Kind.ROUNDED
) -> ColumnOf[Cell]:
    """A column of numbers that is left out where no cell has one."""
    return ColumnOf(name=name, kind=kind, unit=unit, value=value, meaning=meaning, if_known=True)


OF_SINGLE_STEPS = (
    _number(
        "single step, median",
        _of_steps(50),
        unit="ms",
        meaning="steps after the blocks, of all launches; the columns behind it are of the same. Each is waited for "
        "before the next begins, so it takes longer than a step of the blocks, in which the host launches ahead of the "
        "devices.",
    ),
    _number("p95", _of_steps(95), unit="ms"),
    _number("p99", _of_steps(99), unit="ms", meaning="known from 100 single steps on."),
    _number("maximum", _of_steps(100), unit="ms"),
    _number(
        "synchronization",
        _mean(synchronization_seconds, 1e3),
        unit="ms",
        meaning="what it costs to wait for each step: a launch's median single step minus a step of its blocks, and "
        "the mean over launches.",
    ),
    _number(
        "host's share",
        _mean(host_share, 100),
        kind=Kind.PERCENT,
        meaning="the median time until the call that launches a single step returns, as a share of a step of the "
        "blocks. Well below 100%, the host does not hold up the blocks.",
    ),
    _number(
        "launch time",
        _mean(_launch_seconds, 1e6),
        unit="µs",
        meaning="how long the host takes to launch one tiny operation.",
    ),
    ColumnOf[Cell](
        name="bound by",
        kind=Kind.TEXT,
        value=lambda cell: "host" if bound_by_host(cell) else None,
        meaning=f"host-bound: in most launches, the host's share is at least {100 * HOST_SHARE:.0f}%.",
        if_known=True,
    ),
    _number(
        "rank skew",
        lambda cell: _percent(rank_skew(cell)),
        unit="%",
        meaning="how much less time the fastest rank takes for a block than the slowest: the median.",
    ),
)

COLUMNS = (
    ColumnOf[Cell](name="cell", kind=Kind.TEXT, value=lambda cell: cell.title),
    ColumnOf[Cell](name="launches", kind=Kind.COUNT, value=lambda cell: len(cell.timed)),
    ColumnOf[Cell](name="blocks", kind=Kind.COUNT, value=lambda cell: max(map(len, cell.blocks))),
    ColumnOf[Cell](
        name="between launches",
        kind=Kind.ROUNDED,
        unit="%",
        value=lambda cell: _percent(_variance(cell).between),
        meaning="the standard deviation of launches, without what blocks contribute to it.",
    ),
    ColumnOf[Cell](
        name="within a launch",
        kind=Kind.ROUNDED,
        unit="%",
        value=lambda cell: _percent(_variance(cell).within),
        meaning="the standard deviation of blocks.",
    ),
    ColumnOf[Cell](
        name="share between",
        kind=Kind.PERCENT,
        value=lambda cell: _percent(_variance(cell).share_between),
        meaning="how much of a block's variance is between launches (Kalibera & Jones 2013).",
    ),
    ColumnOf[Cell](
        name="launches for 1%",
        kind=Kind.LABEL,
        value=_needed,
        meaning=(
            f"how many launches would tell a difference of {100 * LEAST_MARGIN:.0f}% from a cell that varies as much, "
            "with a power of 80%."
        ),
    ),
    *OF_SINGLE_STEPS,
    ColumnOf[Cell](
        name="not steady",
        kind=Kind.TEXT,
        value=lambda cell: words(findings(cell)) or "-",
        meaning=(
            "trends (Mann-Kendall), changes of level (Pettitt) and common patterns (analysis of variance) of at least "
            "1% with p below 5%, after Holm's adjustment over the cell's launches. They need eight blocks."
        ),
    ),
)


def section(cells: Sequence[Cell]) -> list[Node]:
    """The table of all timed cells; nothing on CPU devices, whose times say nothing."""
    timed = [cell for cell in cells if cell.estimate is not None and cell.spec.platform != "cpu"]
    if not timed:
        return []
    table = make_table(COLUMNS, timed)
    return [Section("Variance and steadiness", (paragraph(NOTE), table, meanings(table)))]
