"""The words in pictures: titles, and the names of cells."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import naming
from harness.reporting.descriptions import batches, precisions
from harness.reporting.summary import Cell

CPU_STAMP = "virtual CPU devices: correctness only"


def labels(cells: Sequence[Cell]) -> list[str]:
    """The cells' names in a picture. Options follow on a second line where names would otherwise be the same, and in a
    twin, whose original may not be in the picture."""
    plain = [cell.named(options=False, workload=False) for cell in cells]
    found = []
    for name, cell in zip(plain, cells, strict=True):
        options = naming.options(cell.spec) if plain.count(name) > 1 or cell.spec.twin else ""
        found.append(f"{name}\n{options}" if options else name)
    return found


def title(cells: Sequence[Cell], *, of: str = "") -> str:
    """What the cells have in common, and that they ran on virtual CPU devices if they did. `of` begins the title."""
    spec = cells[0].spec
    stamp = f" – {CPU_STAMP}" if spec.platform == "cpu" else ""
    return f"{of}{spec.workload} ({spec.size}), batch {batches(cells)}, {precisions(cells)}{stamp}"
