"""The result table and the parity table: one row per cell, everything as text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import pandas as pd

from harness.reporting import naming
from harness.reporting.formatting import at_most, number
from harness.reporting.summary import Cell
from harness.spec import TrialResult

TEXT_COLUMNS = (
    "workload",
    "framework",
    "strategy",
    "track",
    "precision",
    "options",
    "training",
    "BatchNorm over",
    "parity",
    "status",
)
REPORT_ONLY_COLUMNS = ("peak MiB",)  # too wide for the screen


def table(cells: Sequence[Cell]) -> pd.DataFrame:
    """The result table. A missing value is "-"; a column in which no cell differs or has a value is left out."""
    several = len({(cell.spec.workload, cell.spec.size) for cell in cells}) > 1
    optional = any(naming.options(cell.spec) for cell in cells)
    different = any(not naming.same_training(cell.spec) for cell in cells)
    normalizing = any(naming.normalizes(cell.spec) for cell in cells)
    bare = any(cell.over_bare is not None for cell in cells)
    units = {cell.first.unit for cell in cells}
    rows = []
    for cell in cells:
        spec = cell.spec
        step_ms = None if cell.step_seconds is None else 1e3 * cell.step_seconds
        row = {"workload": f"{spec.workload} {spec.size}"} if several else {}
        row |= {
            "framework": naming.framework_title(spec.framework),
            "strategy": spec.strategy,
            **conditions(cell, cells),
            **({"options": naming.options(spec) or "-"} if optional else {}),
            "devices": str(spec.devices),
            **({"training": naming.training(spec)} if different else {}),
            **({"BatchNorm over": naming.normalized_over(spec)} if normalizing else {}),
            **_throughput(cell, units),
            "range": "-" if cell.low is None else f"{number(cell.low)} – {number(cell.high)}",
            "speed-up": "-" if cell.speedup is None else f"{cell.speedup:.2f}",
            "step ms": number(step_ms),
            **({"over bare": "-" if cell.over_bare is None else f"{cell.over_bare:.2f}"} if bare else {}),
            "first step s": first_steps(cell),
            "peak MiB": peak_mebibytes(cell),
            "parity": parity_word(cell.first),
            "launches": f"{len(cell.throughputs)}/{len(cell.launches)}",
            "status": cell.status,
        }
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def conditions(cell: Cell, cells: Sequence[Cell]) -> dict[str, str]:
    """The columns for the cell's track and precision, if the table's cells differ in them."""
    found = {"track": naming.track(cell.spec)} if any(other.spec.track == "tuned" for other in cells) else {}
    several = len({other.spec.precision for other in cells}) > 1
    return found | ({"precision": cell.spec.precision} if several else {})


def throughput_column(units: set[str]) -> str:
    """The throughput's column: its unit, or "throughput" where cells have several units."""
    return f"{next(iter(units))}s/s" if len(units) == 1 else "throughput"


def _throughput(cell: Cell, units: set[str]) -> dict[str, str]:
    """The throughput, with its unit beside the number unless the column's name is the unit."""
    name = throughput_column(units)
    if len(units) == 1 or cell.throughput is None:
        return {name: number(cell.throughput)}
    return {name: f"{number(cell.throughput)} {cell.first.unit}s/s"}


def first_steps(cell: Cell) -> str:
    """Seconds of the first step; "-" with protocol from_host, which times no step alone."""
    if cell.spec.protocol == "from_host":
        return "-"
    return _by_cache(cell, lambda result: result.first_step_seconds, "{:.2f}")


def peak_mebibytes(cell: Cell) -> str:
    """Peak memory of the busiest device. A launch that compiles also autotunes kernels, which takes memory as well."""
    return _by_cache(cell, lambda result: max(result.peak_bytes, default=0) / 2**20 or None, "{:.0f}")


def _by_cache(cell: Cell, value_of: Callable[[TrialResult], float | None], form: str) -> str:
    """The median over launches, apart for cold and warm compile caches if there is one; "-" without a value."""
    found: dict[str, list[float]] = {}
    for result in cell.launches:
        value = value_of(result)
        if result.status == "ok" and value is not None:
            found.setdefault(result.compile_cache, []).append(value)
    words = {"cold": " cold", "warm": " warm"}
    return (
        ", ".join(form.format(statistics.median(found[state])) + words.get(state, "") for state in sorted(found)) or "-"
    )


def parity_word(result: TrialResult) -> str:
    """The worst error in the gate, or "-" if the gate did not judge it."""
    if result.parity is None:
        return "-"
    worst = max(check.error for check in result.parity.checks)
    named = "" if result.parity.tolerances == "exact" else f" (larger tolerances: {result.parity.tolerances})"
    return f"{at_most(worst)}{named}" if result.parity.passed else f"FAILED ({at_most(worst)})"


def parity(cells: Sequence[Cell]) -> pd.DataFrame:
    """The gate's errors and tolerances for each cell that it judged."""
    rows = []
    for cell in cells:
        found = cell.first.parity
        if found is None:
            continue
        worst = max(found.checks, key=lambda check: check.error / check.tolerance)
        row = {"cell": cell.title, "parity": "passed" if found.passed else "FAILED"}
        row |= {check.quantity: f"{check.error:.1e} of {_tolerance(check.tolerance)}" for check in found.checks}
        rows.append(row | {"closest to its tolerance": f"{worst.quantity}: {worst.worst}"})
    return pd.DataFrame(rows)


def _tolerance(value: float) -> str:
    """ "1e-11", "2.3e-07"."""
    return f"{value:.1e}".replace(".0e", "e")
