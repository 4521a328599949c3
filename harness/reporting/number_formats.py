"""Which number formats the timed programs were found to use, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.reporting.formatting import count
from harness.reporting.summary import Cell
from harness.spec import NumberFormats

KINDS = {
    "products": "products",
    "reductions": "sums over devices",
    "transfers": "what else crosses devices",
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
}
"""What the report says of each kind of value. The places, and formats elsewhere, are in results.jsonl."""


def sentences(cells: Sequence[Cell]) -> Iterator[str]:
    """For each precision, the formats that were read from its timed cells."""
    read = [(cell, _found(cell)) for cell in cells if cell.status == "ok" and _found(cell)]
    for precision in dict.fromkeys(cell.spec.precision for cell, _ in read):
        group = [found for cell, found in read if cell.spec.precision == precision]
        everything = [formats for found in group for formats in found]
        parts = [
            f"{words} in {' and '.join(names)}"
            for kind, words in KINDS.items()
            if (names := sorted({name for formats in everything for name in getattr(formats, kind)}))
        ]
        programs = count(len(group), "program", "programs")
        yield f"Number formats read from {programs} timed in {precision}: {', '.join(parts)}."


def _found(cell: Cell) -> list[NumberFormats]:
    """What the ranks of all launches noted."""
    timings = [timing for launch in cell.launches for timing in launch.timings]
    return [timing.formats for timing in timings if timing.formats is not None]
