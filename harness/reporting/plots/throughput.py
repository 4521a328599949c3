"""The picture of throughputs: a dot and an interval per cell, in a panel for each number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.reporting.picture_data import Throughput, Throughputs
from harness.reporting.plots.style import colour_of, finish, plt

WIDEST = 1.5  # times the mean; the axis shows no more of an interval


def draw(path: Path, data: Throughputs) -> None:
    """Draw the cells' means and intervals into `path`."""
    panels = [
        [cell for cell in data.cells if cell.devices == devices]
        for devices in sorted({cell.devices for cell in data.cells})
    ]
    figure, axes = plt.subplots(
        len(panels),
        figsize=(8.5, 0.6 + 0.7 * len(panels) + 0.36 * len(data.cells)),
        height_ratios=[len(panel) + 0.4 for panel in panels],
        squeeze=False,
        layout="constrained",
    )
    two_tracks = len({cell.track for cell in data.cells}) > 1
    for each, panel in zip(axes[:, 0], panels, strict=True):
        _panel(each, panel, two_tracks=two_tracks)
    _legend(figure, axes[0, 0], data.cells, two_tracks=two_tracks)
    axes[-1, 0].set_xlabel(f"{data.unit}s per second")
    finish(figure, path, data.title)


def _panel(axes: Any, cells: Sequence[Throughput], *, two_tracks: bool) -> None:
    """The cells on one number of devices."""
    for row, cell in enumerate(reversed(cells)):
        colour = colour_of(cell.framework)
        if cell.interval:
            axes.hlines(row, cell.interval.low, cell.interval.high, color=colour, linewidth=2)
        points = cell.launches if len(cell.launches) > 1 else ()
        axes.plot(points, [row] * len(points), "|", color=colour, markersize=9)
        if cell.ideal:
            axes.plot([cell.ideal], [row], "D", color="0.4", markerfacecolor="none", markersize=8)
        face = "white" if two_tracks and cell.track == "defaults" else colour
        axes.plot([cell.mean], [row], "o", color=colour, markerfacecolor=face, markersize=6)
    rows = range(len(cells))
    axes.set_yticks(rows, [cell.label for cell in reversed(cells)])
    values = axes.secondary_yaxis("right")
    values.set_yticks(rows, [cell.written for cell in reversed(cells)])
    values.tick_params(length=0)
    axes.set_xlim(0, 1.1 * max(map(_farthest, cells)))
    axes.set_ylim(-0.7, len(cells) - 0.3)
    axes.set_title(f"{cells[0].devices} device{'s' * (cells[0].devices > 1)}", loc="left", fontsize=9)
    axes.grid(axis="x", alpha=0.3)


def _farthest(cell: Throughput) -> float:
    """The largest number of a cell; of a very wide interval, only a part is shown."""
    high = min(cell.interval.high, WIDEST * cell.mean) if cell.interval else 0.0
    return max(cell.mean, cell.ideal or 0.0, high, *cell.launches)


def _legend(figure: Any, axes: Any, cells: Sequence[Throughput], *, two_tracks: bool) -> None:
    kinds = [("untuned", "o", "white"), ("tuned", "o", "0.4")] if two_tracks else []
    if any(cell.ideal for cell in cells):
        kinds.append(("ideal", "D", "none"))
    for label, marker, face in kinds:
        axes.plot([], [], marker, color="0.4", markerfacecolor=face, label=label)
    if kinds:
        figure.legend(loc="outside lower left", ncols=len(kinds), fontsize=8)
