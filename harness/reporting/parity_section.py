"""The section on the parity gate: what was compared, how, and with which errors."""

from __future__ import annotations

from collections.abc import Sequence

from harness.gate.parity import EXACT, MOST_ALLOWED, NOISE_FACTOR, RUNNING
from harness.reporting import descriptions, loss_agreement, number_formats, timed_agreement
from harness.reporting.columns import ColumnOf, make_table
from harness.reporting.formatting import from_to
from harness.reporting.model import List, Node, Section, Table, paragraph
from harness.reporting.summary import Cell
from harness.reporting.values import Kind, OfTolerance, Value
from harness.spec import Check, Parity, Quantity

EARLIER: dict[Quantity, float] = {"gradients": 1e-10}
"""The tolerance of what records of earlier versions have."""

FIRST_STEP: dict[Quantity, str] = {"gradients": "gradient", "first update": "change"}
"""What was compared after the first step."""


def section(cells: Sequence[Cell]) -> Section:
    """The whole section."""
    return Section("Parity", _body(cells))


def _body(cells: Sequence[Cell]) -> tuple[Node, ...]:
    judged = [cell.first.parity for cell in cells if cell.first.parity]
    if not judged:
        return (paragraph("No cell reached the parity gate."),)
    compared = {check.quantity for parity in judged for check in parity.checks}
    of_first_step = " and ".join(text for name, text in FIRST_STEP.items() if name in compared)
    statistics = " and BatchNorm's running statistics" if "running statistics" in compared else ""
    what = (
        f"Before anything was timed, each cell trained {from_to([parity.steps for parity in judged])} steps of "
        f"{from_to([parity.batch for parity in judged])} samples in float64 with the optimizer named above; the "
        f"learning rate{_and_split_size(cells)} scaled with the batch. {_reference(cells)}The gate compares the "
        f"losses, every parameter's {of_first_step} in the first step, and every parameter{statistics} after the "
        "last step, on every replica."
    )
    how = (
        "Errors are relative to the largest value in the tensor; for parameters, to the largest change. "
        f"{_tolerances(cells)} Errors near 1e-14 are rounding, including the reference's own. Each entry of the table "
        "is an error and its tolerance (error of tolerance)."
    )
    proofs = {cell.spec.computation: cell for cell in reversed(cells)}  # one proof serves all protocols
    proved = [cell for cell in cells if proofs[cell.spec.computation] is cell]
    of_timed = (*timed_agreement.sentences(cells), *loss_agreement.sentences(cells))
    found = List((*of_timed, *number_formats.sentences(cells)))
    return (paragraph(what), paragraph(how), table(proved), found)


def _tolerances(cells: Sequence[Cell]) -> str:
    """The tolerances of the cells that were judged, and in how many of them rounding made them larger."""
    judged = [(cell.spec.tolerances, cell.first.parity) for cell in cells if cell.first.parity]
    least: dict[Quantity, float] = {**EXACT, "running statistics": RUNNING["exact"], **EARLIER}
    compared = {check.quantity for _, parity in judged for check in parity.checks}
    limits = ", ".join(
        f"{limit:.0e} for {name}" for name, limit in sorted(least.items(), key=lambda item: item[1]) if name in compared
    )
    wider = sum(
        any(check.tolerance > least[check.quantity] for check in parity.checks)
        for tolerances, parity in judged
        if tolerances == "exact"
    )
    if not wider:
        return f"The tolerances are {limits}."
    where = "all cells" if wider == len(judged) else f"{wider} of {len(judged)} cells"
    return (
        f"The tolerances are at least {limits}. A deep network amplifies rounding: in {where} here some are larger, "
        f"{NOISE_FACTOR} times as much as the reference itself changes when its initial weights are rounded once more, "
        f"but at most {MOST_ALLOWED:.0e}."
    )


def _and_split_size(cells: Sequence[Cell]) -> str:
    return " and split_size were" if any("split_size" in cell.spec.options for cell in cells) else " was"


def _reference(cells: Sequence[Cell]) -> str:
    """What the cells that were judged were compared with, as sentences with a space behind them."""
    judged = [cell for cell in cells if cell.first.parity]
    by_peers = [cell for cell in judged if descriptions.has_judge(cell)]
    by_numpy = "The golden reference is the same steps in NumPy, computed independently of all frameworks. "
    if not by_peers:
        return by_numpy
    peers = "The reference of each cell is the same steps by another framework's model, on one device. "
    return (by_numpy if len(by_peers) < len(judged) else "") + peers + descriptions.judges(by_peers)


def table(cells: Sequence[Cell]) -> Table:
    """The gate's errors and tolerances for each cell that it judged."""
    judged = [(cell, cell.first.parity) for cell in cells if cell.first.parity]
    quantities = dict.fromkeys(check.quantity for _, parity in judged for check in parity.checks)
    columns = (
        ColumnOf[tuple[Cell, Parity]](name="cell", kind=Kind.TEXT, value=lambda row: row[0].title),
        ColumnOf[tuple[Cell, Parity]](
            name="parity", kind=Kind.TEXT, value=lambda row: "passed" if row[1].passed else "FAILED"
        ),
        *map(_quantity, quantities),
        ColumnOf[tuple[Cell, Parity]](
            name="closest to its tolerance", kind=Kind.TEXT, value=lambda row: _closest(row[1])
        ),
    )
    return make_table(columns, judged)


def _quantity(name: str) -> ColumnOf[tuple[Cell, Parity]]:
    """The column of the errors in one quantity, such as the losses."""

    def value(row: tuple[Cell, Parity]) -> Value:
        check = next((check for check in row[1].checks if check.quantity == name), None)
        return None if check is None else OfTolerance(check.error, check.tolerance)

    return ColumnOf(name=name, kind=Kind.ERROR, value=value)


def _closest(parity: Parity) -> str:
    def used(check: Check) -> float:
        return check.error / check.tolerance

    worst = max(parity.checks, key=used)
    return f"{worst.quantity}: {worst.worst}"
