"""The picture of throughputs: a dot and an interval per cell."""

from __future__ import annotations

from pathlib import Path

from harness.reporting.picture_data import Throughputs
from harness.reporting.plots.style import colour_of, finish, plt


def draw(path: Path, data: Throughputs) -> None:
    """Draw the cells' means and intervals into `path`."""
    cells = data.cells
    figure, axes = plt.subplots(figsize=(8.5, 1.2 + 0.42 * len(cells)), layout="constrained")
    two_tracks = len({cell.track for cell in cells}) > 1
    for row, cell in enumerate(reversed(cells)):
        colour = colour_of(cell.framework)
        if cell.interval:
            axes.hlines(row, cell.interval.low, cell.interval.high, color=colour, linewidth=2)
        points = cell.launches if len(cell.launches) > 1 else ()
        axes.plot(points, [row] * len(points), "|", color=colour, markersize=9)
        face = "white" if two_tracks and cell.track == "defaults" else colour
        axes.plot([cell.mean], [row], "o", color=colour, markerfacecolor=face, markersize=6)
    axes.set_yticks(range(len(cells)), [cell.label for cell in reversed(cells)])
    axes.set_xlim(0, 1.1 * max(most for cell in cells for most in (cell.mean, *cell.launches)))
    axes.set_ylim(-0.7, len(cells) - 0.3)
    if two_tracks:
        for label, face in (("untuned", "white"), ("tuned", "0.4")):
            axes.plot([], [], "o", color="0.4", markerfacecolor=face, label=label)
        axes.legend(fontsize=8)
    axes.set_xlabel(f"{data.unit}s per second")
    axes.grid(axis="x", alpha=0.3)
    finish(figure, path, data.title)
