"""What all pictures share: colours, markers, labels, title and file format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from harness.reporting import naming
from harness.reporting.descriptions import batches, precisions
from harness.reporting.summary import Cell

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# The palette of Okabe & Ito, which is safe for colour-blind readers. A framework has the same colour everywhere.
COLOURS = {"torch": "#D55E00", "jax": "#0072B2", "tf": "#E69F00"}
OTHER_COLOUR = "#009E73"
MARKERS = "osD^vP*X<>p"
CPU_STAMP = "virtual CPU devices: correctness only"


def colour_of(cell: Cell) -> str:
    """The colour of the cell's framework."""
    return COLOURS.get(cell.spec.framework, OTHER_COLOUR)


def labels(cells: Sequence[Cell]) -> list[str]:
    """The cells' names in a picture. Options follow on a second line, only where names would otherwise be the same."""
    plain = [cell.plain_title for cell in cells]
    return [
        name if plain.count(name) == 1 or not naming.options(cell.spec) else f"{name}\n{naming.options(cell.spec)}"
        for name, cell in zip(plain, cells, strict=True)
    ]


def finish(figure, path: Path, cells: Sequence[Cell], *, of: str = "") -> None:
    """Put the title over the figure and save it. `of` begins the title."""
    spec = cells[0].spec
    title = f"{of}{spec.workload} ({spec.size}), batch {batches(cells)}, {precisions(cells)}"
    if spec.platform == "cpu":
        title += f" – {CPU_STAMP}"
    figure.suptitle(title, fontsize=10)  # over the figure, because narrow axes would cut it off
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    save(figure, path)


def save(figure, path: Path) -> None:
    """Save the figure as a PNG without matplotlib's version in it, and free its memory."""
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
