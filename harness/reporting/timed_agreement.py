"""How far the timed programs were from the float64 reference over the steps that both made, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.reporting.summary import Cell
from harness.spec import Check, Quantity

WORDS: dict[Quantity, str] = {
    "timed losses": "a loss by {error} of the curve's range",
    "timed movement": "the length of the whole movement of the weights by {error} of it",
    "timed parameters": "a tensor's weights by {error} of how far they moved",
    "timed tensor movement": "the length of one tensor's movement by a factor of {error}",
}
"""What an error of each quantity means: harness/gate/timed_curve.py."""
OF_ONE_TENSOR: tuple[Quantity, ...] = ("timed parameters", "timed tensor movement")


def sentences(cells: Sequence[Cell]) -> Iterator[str]:
    """For each precision, the largest distance of each kind, and the one that is closest to its tolerance."""
    judged = [cell for cell in cells if cell.status == "ok" and cell.spec.algorithm == "synchronous" and _checks(cell)]
    for precision in dict.fromkeys(cell.spec.precision for cell in judged):
        found = [(cell, check) for cell in judged if cell.spec.precision == precision for check in _checks(cell)]
        parts = []
        for quantity in WORDS:
            own = [(cell, check) for cell, check in found if check.quantity == quantity]
            if own:
                parts.append(_farthest(own))
        yield (
            f"In {precision} and on full batches, the timed programs were at most this far from their float64 "
            f"references, over the steps that both made: {'; '.join(parts)}."
        )


def _farthest(found: Sequence[tuple[Cell, Check]]) -> str:
    """The largest error of one quantity; tolerances differ, so another one may be closer to its own."""
    largest = max(found, key=lambda each: each[1].error)
    closest = max(found, key=lambda each: each[1].error / each[1].tolerance)
    words = WORDS[largest[1].quantity].format(error=_error(largest[1]))
    said = f"{words} ({_where(*largest)}; tolerance {_tolerance(largest[1])})"
    if closest[1].tolerance == largest[1].tolerance:
        return said
    return f"{said}, or by {_error(closest[1])} where the tolerance is {_tolerance(closest[1])} ({_where(*closest)})"


def _where(cell: Cell, check: Check) -> str:
    tensor = check.worst.split(" ")[0]
    return f"{tensor} in {cell.title}" if check.quantity in OF_ONE_TENSOR else cell.title


def _error(check: Check) -> str:
    return _written(check.quantity, check.error)


def _tolerance(check: Check) -> str:
    return _written(check.quantity, check.tolerance)


def _written(quantity: Quantity, number: float) -> str:
    return f"{number:.2g}" if quantity == "timed tensor movement" else f"{100 * number:.2g}%"


def _checks(cell: Cell) -> list[Check]:
    """Of all ranks and launches."""
    return [
        check
        for launch in cell.good
        for timing in launch.timings
        for check in timing.checks
        if check.quantity in WORDS and check.tolerance
    ]
