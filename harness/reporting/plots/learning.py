"""The picture of accuracy over samples and over time."""

from __future__ import annotations

from pathlib import Path

from harness.reporting.picture_data import LearningCurves
from harness.reporting.plots.style import MARKERS, colour_of, finish, plt


def draw(path: Path, data: LearningCurves) -> None:
    """Draw the accuracy after each epoch into `path`, one line per seed."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.5), sharey=True)
    for index, cell in enumerate(data.cells):
        colour = colour_of(cell.framework)
        for seed, curve in enumerate(cell.seeds):
            accuracy = [point.percent for point in curve]
            samples = [point.samples for point in curve]
            seconds = [point.seconds for point in curve]
            style = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 4}
            style |= {"linestyle": (0, (4, index % 8)), "linewidth": 1, "alpha": 1.0 if seed == 0 else 0.35}
            panels[0].plot(samples, accuracy, label=cell.label if seed == 0 else None, **style)
            panels[1].plot(seconds, accuracy, **style)
    for axes, name in zip(panels, (f"{data.unit}s trained on", "seconds of training"), strict=True):
        axes.axhline(data.target_percent, color="0.7", linewidth=1)
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"{data.judged} accuracy, %")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.set_layout_engine("constrained")
    finish(figure, path, data.title)
