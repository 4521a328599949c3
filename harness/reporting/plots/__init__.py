"""The pictures of a report, one module per kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.reporting import sweep, timelines
from harness.reporting.plots import learning, losses, pipelines, throughput
from harness.reporting.summary import Cell


def draw(folder: Path, cells: Sequence[Cell]) -> dict[str, str]:
    """Draw all pictures for which there are cells into `folder`; returns file names with their captions."""
    pictures = {}
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        name = "-".join(workload)
        resident = [cell for cell in group if cell.spec.protocol == "resident" and not cell.spec.training]
        timed = [cell for cell in resident if cell.throughput is not None]
        curves = [cell for cell in resident if cell.first.losses]
        learned = [cell for cell in group if any(len(result.epochs) > 1 for result in cell.launches)]
        if timed:
            pictures[f"throughput-{name}.png"] = throughput.draw(folder / f"throughput-{name}.png", timed)
        if curves:
            pictures[f"losses-{name}.png"] = losses.draw(folder / f"losses-{name}.png", curves)
        if learned:
            pictures[f"learning-{name}.png"] = learning.draw(folder / f"learning-{name}.png", learned)
    if any(cell.spec.protocol == "from_host" for cell in cells):
        pictures["tutorial.png"] = pipelines.tutorial_bars(folder / "tutorial.png", cells)
    for number, found in enumerate(sweep.find(cells), 1):
        name = f"sweep-{number}-{found.option}.png"
        pictures[name] = pipelines.sweep_curve(folder / name, found)
    for number, cell in enumerate(timelines.chosen(cells), 1):
        name = f"timeline-{number}-{cell.spec.strategy}.png"
        pictures[name] = pipelines.timeline(folder / name, cell)
    return pictures
