"""The picture of small differences: a dot and an interval per cell, on an axis that is zoomed to the fastest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from harness.reporting.picture_data import RelativePanel, Relatives
from harness.reporting.plots.style import colour_of, finish, plt

NEAR = 10.0  # percent: an axis reaches no further if any cell is as near
ROOM = 1.15  # of an axis, beyond what it shows


def draw(path: Path, data: Relatives) -> None:
    """Draw a panel for each group of cells into `path`."""
    rows = [len(panel.cells) + 1 for panel in data.panels]
    figure, axes = plt.subplots(
        len(rows),
        figsize=(8.5, 0.6 + 0.8 * len(rows) + 0.36 * sum(rows)),
        height_ratios=[number + 0.4 for number in rows],
        squeeze=False,
        layout="constrained",
    )
    for each, panel in zip(axes[:, 0], data.panels, strict=True):
        _panel(each, panel)
    axes[-1, 0].set_xlabel("speed relative to the fastest cell, % (zoomed axis)")
    finish(figure, path, "")


def limits(panel: RelativePanel) -> tuple[float, float]:
    """Both ends of a panel's axis. It reaches past the margin, and to the cells that are near with their intervals; to
    all cells if none is near."""
    near = [cell for cell in panel.cells if abs(cell.percent) <= NEAR]
    ends = [-2 * panel.margin_percent, 2 * panel.margin_percent]
    for cell in near or panel.cells:
        ends += [cell.percent, *((cell.interval.low, cell.interval.high) if cell.interval else ())]
    far = NEAR if near else max(filter(math.isfinite, map(abs, ends)))
    return ROOM * max(-far, min(ends)), ROOM * min(far, max(ends))


def _panel(axes: Any, panel: RelativePanel) -> None:
    low, high = limits(panel)
    axes.axvspan(-panel.margin_percent, panel.margin_percent, color="0.92")
    axes.axvline(0, color="0.6", linewidth=1)
    names = [*(cell.label for cell in reversed(panel.cells)), panel.best]
    axes.plot([0], [len(names) - 1], "o", color=colour_of(panel.framework), markersize=6)
    for row, cell in enumerate(reversed(panel.cells)):
        colour = colour_of(cell.framework)
        if low <= cell.percent <= high:
            if cell.interval:
                axes.hlines(row, max(low, cell.interval.low), min(high, cell.interval.high), color=colour, linewidth=2)
            axes.plot([cell.percent], [row], "o", color=colour, markersize=6)
        else:
            end, marker, side = (low, "<", "left") if cell.percent < low else (high, ">", "right")
            axes.plot([end], [row], marker, color=colour, markersize=8, clip_on=False)
            axes.annotate(
                f"{cell.percent:+.0f}%", (end, row), (8 if side == "left" else -8, 0), textcoords="offset points",
                ha=side, va="center", fontsize=8,
            )  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_title(panel.title, loc="left", fontsize=9)
    axes.grid(axis="x", alpha=0.3)
