"""Which number formats the timed programs were found to use, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gate.number_formats import BY_XLA, narrower
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
SUMS_BY_XLA = tuple(f"{kind}, {BY_XLA}" for kind in ("all-reduce", "reduce-scatter"))


def sentences(cells: Sequence[Cell]) -> Iterator[str]:
    """For each precision, the formats that were read from its timed cells."""
    read = [(cell, _found(cell)) for cell in cells if cell.status == "ok" and _found(cell)]
    for precision in dict.fromkeys(cell.spec.precision for cell, _ in read):
        group = [found for cell, found in read if cell.spec.precision == precision]
        everything = [formats for found in group for formats in found]
        parts = [
            f"{words} in {' and '.join(names)}"
            for kind, words in KINDS.items()
            if (names := sorted({name for formats in everything for name in held_in(kind, formats)}))
        ]
        programs = count(len(group), "program", "programs")
        yield f"Number formats read from {programs} timed in {precision}: {', '.join(parts)}."


def held_in(kind: str, found: NumberFormats) -> list[str]:
    """The formats of one kind of value. Sums that XLA's partitioner places are recorded as transfers, because nobody
    knows what they sum; here they are sums."""
    placed = [name for name, place in found.transfers.items() if place.startswith(SUMS_BY_XLA)]
    if kind == "reductions":
        return [*found.reductions, *placed]
    if kind == "transfers":
        return [name for name in found.transfers if name not in placed]
    return list(getattr(found, kind))


def narrow_sums(cells: Sequence[Cell]) -> list[Cell]:
    """The cells in which XLA's partitioner sums over devices in a narrower format than the others do."""
    found = []
    for cell in cells:
        formats = [each for each in _found(cell) if each.parameters]
        wide = {name for each in formats for name in each.parameters}
        sums = {name for each in formats for name in held_in("reductions", each) if name not in each.reductions}
        if any(narrower(name, parameters) for name in sums for parameters in wide):
            found.append(cell)
    return found


def _found(cell: Cell) -> list[NumberFormats]:
    """What the ranks of all launches noted."""
    timings = [timing for launch in cell.launches for timing in launch.timings]
    return [timing.formats for timing in timings if timing.formats is not None]
