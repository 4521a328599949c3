"""The picture of throughputs: a dot and a range per cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.reporting.descriptions import spreads
from harness.reporting.plots.style import colour_of, finish, labels, plt
from harness.reporting.summary import Cell


def draw(path: Path, cells: Sequence[Cell]) -> str:
    """Draw the cells' medians and ranges into `path`; returns the caption."""
    figure, axes = plt.subplots(figsize=(8.5, 1.2 + 0.42 * len(cells)), layout="constrained")
    two_tracks = len({cell.spec.track for cell in cells}) > 1
    for row, cell in enumerate(reversed(cells)):
        colour = colour_of(cell)
        axes.hlines(row, cell.low or 0, cell.high or 0, color=colour, linewidth=2)
        points = cell.throughputs if len(cell.throughputs) > 1 else ()
        axes.plot(points, [row] * len(points), "|", color=colour, markersize=9)
        face = "white" if two_tracks and cell.spec.track == "defaults" else colour
        axes.plot([cell.throughput or 0], [row], "o", color=colour, markerfacecolor=face, markersize=6)
    axes.set_yticks(range(len(cells)), list(reversed(labels(cells))))
    axes.set_xlim(left=0)
    axes.set_ylim(-0.7, len(cells) - 0.3)
    if two_tracks:
        for label, face in (("untuned", "white"), ("tuned", "0.4")):
            axes.plot([], [], "o", color="0.4", markerfacecolor=face, label=label)
        axes.legend(fontsize=8)
    axes.set_xlabel(f"{cells[0].first.unit}s per second")
    axes.grid(axis="x", alpha=0.3)
    finish(figure, path, cells)
    caption = (
        f"Throughput of {cells[0].spec.workload}. The dot is the median launch, and the line is the range of the "
        f"{spreads(cells)}."
    )
    return caption + (" Hollow dots are untuned, filled dots are tuned." if two_tracks else "")
