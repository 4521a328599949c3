"""The table of what simple programs reach on the devices, beside what the steps of each cell reach."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.model import Table
from harness.reporting.summary import Cell
from harness.reporting.values import Kind, Value
from harness.results.bounds import matrix_rate_reached
from harness.spec import Bounds


def measured(cells: Sequence[Cell]) -> list[Cell]:
    """The cells on GPUs in whose successful launches bounds were measured."""
    return [cell for cell in cells if cell.spec.platform == "gpu" and _bounds(cell)]


def _bounds(cell: Cell) -> list[Bounds]:
    return [result.bounds for result in cell.good if result.bounds is not None]


def _highest(of: Callable[[Bounds], float | None], per: float) -> Callable[[Cell], Value]:
    """The highest rate over a cell's launches: interruptions only lower it."""

    def value(cell: Cell) -> Value:
        rates = [rate for each in _bounds(cell) if (rate := of(each)) is not None]
        return max(rates) / per if rates else None

    return value


def _reached(cells: Sequence[Cell]) -> Callable[[Cell], Value]:
    """What a cell reached of the highest matrix rate that any of these cells measured on such devices."""
    highest: dict[Hashable, float] = {}
    for cell in cells:
        for each in _bounds(cell):
            highest[_alike(cell)] = max(each.matrix_flops_per_second or 0.0, highest.get(_alike(cell), 0.0))

    def value(cell: Cell) -> Value:
        rates = [rate for result in cell.good if (rate := matrix_rate_reached(result)) is not None]
        return 100 * max(rates) / highest[_alike(cell)] if rates else None

    return value


def _alike(cell: Cell) -> Hashable:
    return (frozenset(gpu.name for gpu in cell.first.conditions.hardware.gpus), cell.spec.precision)


def _measured_by(cell: Cell) -> Value:
    return next((each.links.measured_by for each in _bounds(cell) if each.links is not None), None)


def table(cells: Sequence[Cell]) -> Table:
    """One row per cell."""
    return make_table(_columns(cells), cells)


def _columns(cells: Sequence[Cell]) -> tuple[ColumnOf[Cell], ...]:
    return (
        ColumnOf[Cell](name="cell", kind=Kind.TEXT, value=lambda cell: cell.title),
        ColumnOf[Cell](
            name="matrix products",
            kind=Kind.ROUNDED,
            value=_highest(lambda each: each.matrix_flops_per_second, 1e12),
            unit="TFLOP/s",
            meaning=(
                "a product of large square matrices of random numbers on one device, in the cell's precision. Until "
                "commit 2087e38, and in it, they were ones, which take less power."
            ),
        ),
        ColumnOf[Cell](
            name="reached",
            kind=Kind.ROUNDED,
            value=_reached(cells),
            unit="%",
            meaning=(
                "the rate of the network's products in the fastest block, per device, as a share of the highest rate "
                "of matrix products in the table, for the same GPUs and precision."
            ),
        ),
        ColumnOf[Cell](
            name="memory",
            kind=Kind.GROUPED,
            value=_highest(lambda each: each.memory_bytes_per_second, 1e9),
            unit="GB/s",
            meaning="bytes read plus bytes written by one device that doubles a large array.",
        ),
        ColumnOf[Cell](
            name="links",
            kind=Kind.ROUNDED,
            value=_highest(lambda each: each.links.bytes_per_second if each.links else None, 1e9),
            unit="GB/s",
            meaning=(
                "between devices: the bus bandwidth of an all-reduce that does nothing else, as NCCL's tests define "
                "it, or what a copy from one device to another reaches. A strategy may do better where its own "
                "all-reduce is made in another way."
            ),
        ),
        ColumnOf[Cell](name="links by", kind=Kind.TEXT, value=_measured_by),
    )
