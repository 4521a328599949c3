"""The picture of loss curves, and of their distance from the golden reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from harness.reporting.picture_data import LossCurve, LossCurves
from harness.reporting.plots.style import MARKERS, colour_of, finish, plt

CROWDED = 8  # with more curves of one framework, its colour alone cannot distinguish them


def draw(path: Path, data: LossCurves) -> None:
    """Draw the cells' losses into `path`, one panel per global batch.

    Where there is a golden reference, it is a broad grey curve, and a last panel shows the distance from it.
    """
    # the reference depends on which samples share BatchNorm statistics; without BatchNorm there is only one per batch
    curves = dict.fromkeys((cell.global_batch, cell.golden) for cell in data.cells)
    made = "golden reference (NumPy float64)"
    if not any(cell.by_numpy for cell in data.cells if cell.golden):
        made = "reference (float64 on the device)"
    goldens = [(batch, golden) for batch, golden in curves if golden]
    sizes = sorted({batch for batch, _ in curves})
    count = len(sizes) + bool(goldens)
    figure, panels = plt.subplots(1, count, figsize=(3 + 4 * count, 5.5), squeeze=False)
    panel = dict(zip(sizes, panels[0], strict=False))
    for index, (batch, golden) in enumerate(goldens):
        label = made if index == 0 else None
        panel[batch].plot(range(1, len(golden) + 1), golden, color="0.8", linewidth=7, label=label)
    _draw_cells(data.cells, panel, panels[0][-1])
    for batch, axes in panel.items():
        axes.set_ylabel("loss")
        if len(sizes) > 1:
            axes.set_title(f"batch {batch}", fontsize=10)
    if goldens:
        panels[0][-1].set_yscale("log")
        panels[0][-1].set_ylabel("relative distance")
        panels[0][-1].set_title("distance from the reference", fontsize=10)
    for axes in panels[0]:
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.set_layout_engine("constrained")
    finish(figure, path, data.title)


def _draw_cells(cells: Sequence[LossCurve], panel: Mapping[int, Any], distances: Any) -> None:
    """Every cell's losses into the panel of its batch, and their distance from the reference into `distances`."""
    one_framework = len({cell.framework for cell in cells}) == 1
    for index, cell in enumerate(cells):
        losses, golden = cell.losses, cell.golden
        colour = colour_of(cell.framework)
        if one_framework and len(cells) > CROWDED:
            colour = plt.get_cmap("viridis")(0.9 * index / len(cells))
        style = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 4, "linewidth": 1}
        # dashes and markers shift from curve to curve, so that equal curves stay visible under one another
        dashes = {"markevery": (index % len(losses), max(1, len(cells))), "linestyle": (0, (4, index % 8))}
        panel[cell.global_batch].plot(range(1, len(losses) + 1), losses, label=cell.label, **dashes, **style)
        if golden:
            off = [max(abs(a - b) / abs(b), 1e-17) if b else math.nan for a, b in zip(losses, golden, strict=False)]
            distances.plot(range(1, len(off) + 1), off, alpha=0.8, **style)
