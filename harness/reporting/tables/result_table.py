"""The columns of the result table, one row per cell. A column is declared here and nowhere else.

A column that would be empty, or equal for all cells, is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from harness.reporting import naming
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.formatting import count, from_to
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.tables.cell_columns import (
    IDENTITY,
    PARITY,
    STATUS,
    of_processes,
    throughput_column,
    throughput_unit,
)
from harness.reporting.values import ByCache, IntervalOf, Kind, Measured, Missing, OutOf, Quantity, Value
from harness.results.rates import counted_seconds
from harness.spec import TrialResult
from harness.statistics.ratios import Ratio


def table(cells: Sequence[Cell]) -> Table:
    """The result table."""
    return make_table(COLUMNS, cells)


def _throughput(cell: Cell) -> Value:
    if cell.estimate is None:
        return None
    found = Measured(cell.estimate.value, cell.estimate.interval, with_interval=False)
    return Quantity(found, f"{cell.first.unit}s/s")


def _throughput_meaning(cells: Sequence[Cell]) -> str:
    spec = cells[0].spec
    counted = [result for cell in cells for result in cell.timed]
    steps = from_to([result.steps_per_block for result in counted]) or str(spec.steps_per_block)
    blocks = from_to([len(counted_seconds(result)) for result in counted]) or str(spec.blocks)
    return (
        f"geometric mean of the launches. A launch has {_counted(blocks, 'block')} of {_counted(steps, 'step')}; its "
        "throughput is the samples of all blocks divided by their total time. A block takes as long as its slowest "
        "rank. The digits are those that the interval supports."
    )


def _counted(numbers: str, noun: str) -> str:
    return count(1, noun) if numbers == "1" else f"{numbers} {noun}s"


def _interval(cell: Cell) -> Value:
    estimate = cell.estimate
    return None if estimate is None or estimate.interval is None else IntervalOf(estimate.value, estimate.interval)


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


def _step_milliseconds(cell: Cell) -> Value:
    return None if cell.step_seconds is None else 1e3 * cell.step_seconds


def first_steps(cell: Cell) -> Value:
    """Seconds of the first step; None with protocol from_host, which times no step alone."""
    if cell.spec.protocol == "from_host":
        return None
    return _by_cache(cell, lambda result: result.first_step_seconds)


def _first_steps_meaning(cells: Sequence[Cell]) -> str:
    meaning = (
        "time of the first step. It includes compilation, but not building the model, and is not part of the "
        "throughput."
    )
    if {result.compile_cache for cell in cells for result in cell.launches} & {"cold", "warm"}:
        meaning += (
            " Cold: the launch had to compile code and autotune kernels. Warm: everything came from the cache of an "
            "earlier launch."
        )
    return meaning


def peak_mebibytes(cell: Cell) -> Value:
    """Peak memory of the busiest device. A launch that compiles also autotunes kernels, which takes memory as well."""
    return _by_cache(cell, lambda result: max(result.peak_bytes, default=0) / 2**20 or None)


def _peak_meaning(cells: Sequence[Cell]) -> str:
    if of_processes(cells):
        return "peak resident memory of the largest process, on the host."
    return "peak memory of the busiest device."


def _by_cache(cell: Cell, value_of: Callable[[TrialResult], float | None]) -> Value:
    """The median over launches, apart for cold and warm compile caches if there is one; None without a value."""
    found: dict[str, list[float]] = {}
    for result in cell.launches:
        value = value_of(result)
        if result.status == "ok" and value is not None:
            found.setdefault(result.compile_cache, []).append(value)
    words = {"cold": "cold", "warm": "warm"}
    medians = tuple((words.get(state, ""), statistics.median(found[state])) for state in sorted(found))
    return ByCache(medians) if medians else None


RATIO_MEANING = (
    "The ideal is the number of devices. A ratio is formed within each round; the bracket is its 95% interval."
)

COLUMNS = (
    *IDENTITY,
    ColumnOf[Cell](
        name="training",
        kind=Kind.TEXT,
        value=lambda cell: naming.training(cell.spec),
        shown=lambda cells: any(not naming.same_training(cell.spec) for cell in cells),
        meaning="whether the cell takes the same steps as a single device.",
    ),
    ColumnOf[Cell](
        name="BatchNorm over",
        kind=Kind.TEXT,
        value=lambda cell: naming.normalized_over(cell.first),
        shown=lambda cells: any(cell.first.described.normalizes for cell in cells),
        meaning="which samples share BatchNorm statistics.",
    ),
    throughput_column(_throughput, meaning=_throughput_meaning),
    ColumnOf[Cell](
        name="interval",
        kind=Kind.ROUNDED,
        value=_interval,
        unit=throughput_unit,
        shown_as="95% interval",
        if_known=True,
        on_screen=False,
        meaning="Student's t interval of the logarithms of the launches. A single launch has none.",
    ),
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
    ColumnOf[Cell](
        name="step",
        kind=Kind.ROUNDED,
        value=_step_milliseconds,
        unit="ms",
        meaning="global batch divided by throughput.",
    ),
    ColumnOf[Cell](
        name="over bare",
        kind=Kind.HUNDREDTHS,
        value=lambda cell: Measured(cell.over_bare.value, cell.over_bare.interval) if cell.over_bare else None,
        if_known=True,
        meaning=(
            "step time of the suite divided by that of a minimal hand-written loop over the same model (PyTorch) or "
            "the same compiled step (other frameworks), timed beside it. 1.00 means that the suite's own Python costs "
            "nothing. The median over a launch's pairs of blocks, and the geometric mean of the launches with its 95% "
            "interval."
        ),
    ),
    ColumnOf[Cell](name="first step", kind=Kind.HUNDREDTHS, value=first_steps, unit="s", meaning=_first_steps_meaning),
    ColumnOf[Cell](
        name="peak",
        kind=Kind.COUNT,
        value=peak_mebibytes,
        unit="MiB",
        meaning=_peak_meaning,
        on_screen=False,  # too wide for it
    ),
    PARITY,
    ColumnOf[Cell](
        name="launches",
        kind=Kind.COUNT,
        value=lambda cell: OutOf(len(cell.throughputs), len(cell.launches)),
        meaning="successful launches out of all launches.",
    ),
    STATUS,
)
