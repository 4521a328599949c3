"""The numbers of Results, of Variance and steadiness and of the parity table, computed again from the record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median, stdev

from scipy import stats

from harness.verification.launches import Row, blocks, counted, estimate, steps, timings
from harness.verification.matching import Columns
from harness.verification.record import Cell, Record, grown, ratio
from harness.verification.report_text import Digits, Expected, at_most, fixed, rounded, significant, supported

MOST_LAUNCHES = 1000
NOISE = 1e-13  # what rounding makes of the logarithms of equal ratios


def over(cell: Cell, base: Cell | None) -> Expected:
    """One cell's speed over another's, with its interval. None if the interval is nothing but rounding errors."""
    found = ratio(cell, base) if base else None
    if found and found.degrees and found.error < NOISE:
        return [significant(1.0)] if cell is base else None
    return supported(found.numbers) if found else []


def _over_base(record: Record, cell: Cell, *, weak: bool) -> Expected:
    """On one device, a ratio is strong and weak scaling."""
    base = record.base(cell)
    return over(cell, base) if base and (cell.spec["devices"] == 1 or grown(cell, base) == weak) else []


def _efficiency(record: Record, cell: Cell) -> Expected:
    base, devices = record.base(cell), cell.spec["devices"]
    found = ratio(cell, base) if base and devices > 1 else None
    return fixed(100 * found.value / devices if found else None)


def _over_bare(cell: Cell) -> Expected:
    pairs = [zip(blocks(row), blocks(row, "bare_block_seconds"), strict=False) for row in cell.timed]
    ratios = [[ours / bare for ours, bare in each] for each in pairs]
    launches = [median(each) for each in ratios if each]
    return supported(estimate(launches).numbers) if launches else []


def _by_cache(
    cell: Cell, value_of: Callable[[Row], float | None], digits: Callable[[float | None], Expected]
) -> Expected:
    """The median over launches, by the state of the compile cache."""
    found: dict[str, list[float]] = {}
    for row in cell.good:
        states = [rank["compile_cache"] for rank in row["ranks"] if rank.get("compile_cache")]
        if (value := value_of(row)) is not None:
            found.setdefault("cold" if "cold" in states else (states or [""])[0], []).append(value)
    return [each for state in sorted(found) for each in digits(median(found[state])) or ()]


def _first_step(row: Row) -> float | None:
    """Seconds of a launch's first step on its slowest rank. Under from_host, no step is timed alone."""
    if row["spec"]["protocol"] == "from_host":
        return None
    return max((t["first_step_seconds"] for t in timings(row) if t.get("first_step_seconds") is not None), default=None)


def _peak(row: Row) -> float | None:
    return max((rank.get("peak_bytes") or 0 for rank in row["ranks"]), default=0) / 2**20 or None


def _step(cell: Cell) -> Expected:
    """Milliseconds of a step, with as many significant digits as the speed."""
    if not cell.speed:
        return []
    unit = supported(cell.speed.numbers)[0].unit
    digits = math.floor(math.log10(cell.speed.value)) - round(math.log10(unit)) + 1
    return [significant(1e3 * cell.step_seconds, digits)]


def parity(cell: Cell) -> Expected:
    """The worst error of the gate."""
    checks = (cell.first.get("parity") or {}).get("checks")
    return at_most(max(each["error"] for each in checks)) if checks else []


def result_columns(record: Record) -> Columns:
    """The columns of Results."""
    ratios: Columns = {
        "strong scaling": partial(_over_base, record, weak=False),
        "weak scaling": partial(_over_base, record, weak=True),
        "efficiency": partial(_efficiency, record),
        "over the best single": lambda cell: over(cell, record.best_single(cell)),
    }
    return ({} if record.split else ratios) | {
        "throughput": lambda cell: supported(cell.speed.numbers)[:1] if cell.speed else [],
        "95% interval": lambda cell: supported(cell.speed.numbers)[1:] if cell.speed else [],
        "step ms": _step,
        "over bare": _over_bare,
        "first step s": lambda cell: _by_cache(cell, _first_step, rounded),
        "peak MiB": lambda cell: _by_cache(cell, _peak, fixed),
        "parity": parity,
        "launches": lambda cell: [Digits(len(each), 1.0) for each in (cell.timed, cell.launches)],
    }


def _components(cell: Cell) -> tuple[float | None, float | None]:
    """The standard deviations within and between launches, as shares (Kalibera & Jones 2013, section 6.2)."""
    logs = [[math.log(seconds / steps(row)) for seconds in counted(row)] for row in cell.timed]
    several = [stdev(launch) ** 2 for launch in logs if len(launch) > 1]
    within = fmean(several) if several else None
    if len(logs) < 2:
        return (None if within is None else math.sqrt(within)), None
    per_launch = 1 / fmean(1 / len(launch) for launch in logs)
    between = stdev(map(fmean, logs)) ** 2 - (within or 0.0) / per_launch
    return (None if within is None else math.sqrt(within)), math.sqrt(max(0.0, between))


def _share_between(cell: Cell) -> Expected:
    within, between = _components(cell)
    if within is None or between is None or not within + between:
        return []
    return fixed(100 * between**2 / (within**2 + between**2))


def needed(deviation: float, distance: float) -> int:
    """How many launches resolve a distance between logarithms with a power of 80%; 1,000: or more."""
    for count in range(2, MOST_LAUNCHES + 1):
        reach = stats.t.ppf(0.975, count - 1) + stats.t.ppf(0.8, count - 1)
        if reach * deviation <= distance * math.sqrt(count):
            return count
    return MOST_LAUNCHES


def _needed(cell: Cell) -> Expected:
    spread = cell.relative_deviation if len(cell.timed) > 1 else 0.0
    return fixed(needed(math.sqrt(2) * spread, math.log(1.01)) if spread else None)


def _percent(share: float | None) -> Expected:
    return [] if share is None else [significant(100 * share)]


VARIANCE: Columns = {
    "launches": lambda cell: fixed(len(cell.timed)),
    "blocks": lambda cell: fixed(max(len(counted(row)) for row in cell.timed)),
    "within a launch %": lambda cell: _percent(_components(cell)[0]),
    "between launches %": lambda cell: _percent(_components(cell)[1]),
    "share between": _share_between,
    "launches for 1%": _needed,
}


def gate_columns(cells: Sequence[Cell]) -> Columns:
    """The columns of the parity table: an error and its tolerance for each quantity."""

    def value(quantity: str, cell: Cell) -> Expected:
        checks = [each for each in cell.first["parity"]["checks"] if each["quantity"] == quantity]
        return [significant(each, 2) for check in checks[:1] for each in (check["error"], check["tolerance"])]

    names = {check["quantity"] for cell in cells for check in cell.first["parity"]["checks"]}
    return {name: partial(value, name) for name in names}


def judged(record: Record) -> list[Cell]:
    """The cells of the parity table: one for each proof, which serves all protocols and inputs."""
    proofs: dict[str, Cell] = {}
    for cell in (*record.timed, *record.trained):
        training = (cell.spec.get("training") or {}).get("last_batch")
        names = ("workload", "size", "framework", "strategy", "variant", "devices", "track")
        proofs.setdefault(json.dumps([*(cell.spec[name] for name in names), cell.hosts, training]), cell)
    return [cell for cell in proofs.values() if (cell.first.get("parity") or {}).get("checks")]
