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


def _reached(cells: Sequence[Cell]) -> Callable[[Cell], Expected]:
    """The record has a launch's rate as a share of its own measurement; the report divides it by the highest."""
    highest: dict[tuple, float] = {}
    for cell in cells:
        rate = _most(lambda each: each["matrix_flops_per_second"], 1.0, cell) or 0.0
        highest[_alike(cell)] = max(rate, highest.get(_alike(cell), 0.0))

    def expected(cell: Cell) -> Expected:
        rates = [
            check["error"] * t["bounds"]["matrix_flops_per_second"]
            for row in cell.good
            for t in timings(row)[:1]
            if t.get("bounds")
            for check in t["checks"]
            if check["quantity"] == "share of the matrix rate"
        ]
        return rounded(100 * max(rates) / highest[_alike(cell)] if rates else None)

    return expected


def _alike(cell: Cell) -> tuple:
    return (frozenset(gpu["name"] for gpu in cell.good[0]["conditions"]["hardware"]["gpus"]), cell.spec["precision"])


def _links(each: Mapping[str, Any]) -> float | None:
    return (each["links"] or {}).get("bytes_per_second")


def columns(cells: Sequence[Cell]) -> Columns:
    """What the table says of each of these cells."""
    return {
        "matrix products TFLOP/s": lambda cell: rounded(_most(lambda t: t["matrix_flops_per_second"], 1e12, cell)),
        "reached %": _reached(cells),
        "memory GB/s": lambda cell: fixed(_most(lambda t: t["memory_bytes_per_second"], 1e9, cell)),
        "links GB/s": lambda cell: rounded(_most(_links, 1e9, cell)),
    }


def measured(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the table."""
    return [cell for cell in cells if cell.spec["platform"] != "cpu" and _found(cell)]
