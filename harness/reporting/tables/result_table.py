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
    speed,
    throughput_column,
    throughput_unit,
)
from harness.reporting.tables.scaling_columns import SCALING
from harness.reporting.values import ByCache, Following, IntervalOf, Kind, Measured, OutOf, Value
from harness.results.rates import counted_seconds
from harness.spec import TrialResult
from harness.statistics.intervals import FEWEST


def table(cells: Sequence[Cell]) -> Table:
    """The result table."""
    return make_table(COLUMNS, cells)


def _throughput_meaning(cells: Sequence[Cell]) -> str:
    spec = cells[0].spec
    counted = [result for cell in cells for result in cell.timed]
    steps = from_to([result.steps_per_block for result in counted]) or str(spec.steps_per_block)
    blocks = from_to([len(counted_seconds(result)) for result in counted]) or str(spec.blocks)
    return (
        f"geometric mean of the launches. A launch has {_counted(blocks, 'block')} of {_counted(steps, 'step')}; its "
        "throughput is the samples of all blocks divided by their total time. A block takes as long as its slowest "
        f"rank.{_digits(cells)}{_few(cells)}"
    )


def _digits(cells: Sequence[Cell]) -> str:
    """How many digits the speeds have, as a sentence with a space before it, or ""."""
    some = any(cell.estimate and cell.estimate.interval for cell in cells)
    return " The digits are those that the interval supports." if some else ""


def _few(cells: Sequence[Cell]) -> str:
    """Why some speeds have no interval, as a sentence with a space before it, or ""."""
    if all(len(cell.throughputs) >= FEWEST for cell in cells if cell.estimate):
        return ""
    return f" Fewer than {FEWEST} launches have no interval: they do not show how much launches differ."


def _counted(numbers: str, noun: str) -> str:
    return count(1, noun) if numbers == "1" else f"{numbers} {noun}s"


def _interval(cell: Cell) -> Value:
    estimate = cell.estimate
    return None if estimate is None or estimate.interval is None else IntervalOf(estimate.value, estimate.interval)


def _step_milliseconds(cell: Cell) -> Value:
    if cell.step_seconds is None or cell.estimate is None:
        return None
    return Following(1e3 * cell.step_seconds, Measured(cell.estimate.value, cell.estimate.interval))


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
    states = {result.compile_cache for cell in cells for result in cell.launches}
    if states & {"cold", "warm"}:
        meaning += (
            " Cold: the launch had to compile code and autotune kernels. Warm: everything came from the cache of an "
            "earlier launch."
        )
        meaning += " Without a word: no compiled code is kept, so every launch compiles." if "none" in states else ""
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
    throughput_column(speed, meaning=_throughput_meaning),
    ColumnOf[Cell](
        name="interval",
        kind=Kind.ROUNDED,
        value=_interval,
        unit=throughput_unit,
        shown_as="95% interval",
        if_known=True,
        on_screen=False,
        meaning="Student's t interval of the logarithms of the launches.",
    ),
    *SCALING,
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
    ColumnOf[Cell](name="first step", kind=Kind.ROUNDED, value=first_steps, unit="s", meaning=_first_steps_meaning),
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
