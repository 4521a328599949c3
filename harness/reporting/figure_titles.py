"""The words in pictures: titles, and the names of cells."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import naming
from harness.reporting.descriptions import batches, precisions
from harness.reporting.summary import Cell

CPU_STAMP = "virtual CPU devices: correctness only"


def labels(cells: Sequence[Cell]) -> list[str]:
    """The cells' names in a picture. Options follow on a second line, only where names would otherwise be the same."""
    plain = [cell.named(options=False, workload=False) for cell in cells]
    return [
        name if plain.count(name) == 1 or not naming.options(cell.spec) else f"{name}\n{naming.options(cell.spec)}"
        for name, cell in zip(plain, cells, strict=True)
    ]


def title(cells: Sequence[Cell], *, of: str = "") -> str:
    """What the cells have in common, and that they ran on virtual CPU devices if they did. `of` begins the title."""
    spec = cells[0].spec
    stamp = f" – {CPU_STAMP}" if spec.platform == "cpu" else ""
    return f"{of}{spec.workload} ({spec.size}), batch {batches(cells)}, {precisions(cells)}{stamp}"
