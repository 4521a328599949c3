"""The picture of test accuracy over samples and over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from harness.reporting.plots.style import MARKERS, colour_of, finish, labels, plt
from harness.reporting.summary import Cell


def draw(path: Path, cells: Sequence[Cell]) -> str:
    """Draw the test accuracy after each epoch into `path`, one line per seed; returns the caption."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.5), sharey=True)
    for index, (cell, label) in enumerate(zip(cells, labels(cells), strict=True)):
        colour = colour_of(cell)
        for result in cell.launches:
            accuracy = [100 * epoch.test_accuracy for epoch in result.epochs]
            samples = [epoch.samples for epoch in result.epochs]
            seconds = list(itertools.accumulate(epoch.seconds for epoch in result.epochs))
            first = result is cell.launches[0]
            style = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 4}
            style |= {"linestyle": (0, (4, index % 8)), "linewidth": 1, "alpha": 1.0 if first else 0.35}
            panels[0].plot(samples, accuracy, label=label if first else None, **style)
            panels[1].plot(seconds, accuracy, **style)
    training = cells[0].spec.training
    for axes, name in zip(panels, (f"{cells[0].first.unit}s trained on", "seconds of training"), strict=True):
        axes.axhline(100 * training.target_accuracy if training else 0, color="0.7", linewidth=1)
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.set_layout_engine("constrained")
    finish(figure, path, cells)
    return (
        f"Test accuracy of {cells[0].spec.workload} after each epoch, over samples and over seconds. One line per "
        "seed; the grey line is the target."
    )
