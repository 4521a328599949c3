"""The numbers of the table of clocks, power and temperature, computed again from the record; energy is not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.verification.launches import Row, timings
from harness.verification.matching import Columns
from harness.verification.record import Cell
from harness.verification.report_text import Digits, Expected, fixed

AT_POWER_LIMIT = 0x4  # of NVML's reasons for lower clocks


def _in_blocks(row: Row, column: str) -> list[list[float]]:
    """What each GPU said of itself in the samples within timed blocks."""
    telemetry, ranks = (
        row["telemetry"],
        [
            [(start, start + seconds) for start, seconds in zip(t["block_starts"], t["block_seconds"], strict=True)]
            for t in timings(row)
        ],
    )
    spans = [(min(s for s, _ in block), max(e for _, e in block)) for block in zip(*ranks, strict=False)]
    inside = [
        at
        for at, second in enumerate(telemetry["seconds"])
        if any(start <= second + telemetry["zero"] <= end for start, end in spans)
    ]
    columns = [gpu.get(column) for gpu in telemetry["gpus"]]  # earlier versions have fewer
    return [[said[at] for at in inside if said[at] is not None] if said else [] for said in columns]


def _sampled(cell: Cell) -> list[Row]:
    return [row for row in cell.good if row.get("telemetry")]


def _all(cell: Cell, column: str) -> list[float]:
    return [value for row in _sampled(cell) for gpu in _in_blocks(row, column) for value in gpu]


def _clocks(cell: Cell) -> Expected:
    gpus = [fmean(clocks) for row in _sampled(cell) for clocks in _in_blocks(row, "sm_clock_mhz") if clocks]
    return [Digits(value, 1.0) for value in (fmean(gpus), min(gpus))] if gpus else []


def _busy(cell: Cell) -> Expected:
    gpus = [fmean(busy) for row in _sampled(cell) for busy in _in_blocks(row, "busy_percent") if busy]
    return [Digits(value, 1.0) for value in (fmean(gpus), min(gpus))] if gpus else []


def _limited(cell: Cell) -> Expected:
    masks = [each for row in _sampled(cell) for each in _in_blocks(row, "clock_reasons") if each]
    gpus = [100 * fmean(bool(int(mask) & AT_POWER_LIMIT) for mask in each) for each in masks]
    return [Digits(value, 1.0) for value in (fmean(gpus), max(gpus))] if gpus else []


def _mean(values: Sequence[float], factor: float = 1.0) -> Expected:
    return fixed(factor * fmean(values) if values else None)


def _steal(cell: Cell) -> Expected:
    shares = []
    for row in _sampled(cell):
        if len(host := row["telemetry"]["host"]) > 1:
            passed, stolen = (host[-1][name] - host[0][name] for name in ("cpu_seconds", "steal_seconds"))
            shares += [100 * stolen / passed] if passed > 0 and 0 <= stolen <= passed else []
    return fixed(max(shares, default=None), 2)


def _load(cell: Cell) -> Expected:
    return fixed(max((host["load"] for row in _sampled(cell) for host in row["telemetry"]["host"]), default=None), 2)


TELEMETRY: Columns = {
    "SM clock (slowest GPU), MHz": _clocks,
    "power W": lambda cell: _mean(_all(cell, "power_watts")),
    "busy (least busy GPU)": _busy,
    "at the power limit (most limited GPU)": _limited,
    "temperature °C": lambda cell: fixed(max(_all(cell, "temperature_celsius"), default=None)),
    "steal %": _steal,
    "load": _load,
}


def sampled(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the table of clocks, power and temperature."""
    return [cell for cell in cells if _sampled(cell)]
