"""The numbers of the table of bounds, computed again from the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.verification.launches import timings
from harness.verification.matching import Columns
from harness.verification.record import Cell
from harness.verification.report_text import Expected, fixed, rounded

TITLE = "Bounds of the devices"


def _found(cell: Cell) -> list[Mapping[str, Any]]:
    return [t["bounds"] for row in cell.good for t in timings(row)[:1] if t.get("bounds")]


def _most(of: Callable[[Mapping[str, Any]], float | None], per: float, cell: Cell) -> float | None:
    rates = [rate for each in _found(cell) if (rate := of(each)) is not None]
    return max(rates) / per if rates else None


def _reached(cell: Cell) -> Expected:
    checks = [check for row in cell.good for t in timings(row) for check in t["checks"]]
    shares = [100 * each["error"] for each in checks if each["quantity"] == "share of the matrix rate"]
    return rounded(max(shares, default=None))


def _links(each: Mapping[str, Any]) -> float | None:
    return (each["links"] or {}).get("bytes_per_second")


BOUNDS: Columns = {
    "matrix products TFLOP/s": lambda cell: rounded(_most(lambda each: each["matrix_flops_per_second"], 1e12, cell)),
    "reached %": _reached,
    "memory GB/s": lambda cell: fixed(_most(lambda each: each["memory_bytes_per_second"], 1e9, cell)),
    "links GB/s": lambda cell: rounded(_most(_links, 1e9, cell)),
}


def measured(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the table."""
    return [cell for cell in cells if cell.spec["platform"] != "cpu" and _found(cell)]
