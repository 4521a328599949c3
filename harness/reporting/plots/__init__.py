"""The pictures of a report as PNG files, one module per kind. Each is drawn from the data in its figure alone."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from harness.reporting.model import Figure, Report, walk
from harness.reporting.picture_data import (
    LearningCurves,
    LossCurves,
    SweepCurve,
    Throughputs,
    Timeline,
    TutorialBars,
)
from harness.reporting.plots import learning, losses, pipelines, throughput


def draw(folder: Path, report: Report) -> None:
    """Draw all figures of a report into `folder`."""
    for node in walk(report):
        if isinstance(node, Figure):
            draw_figure(folder / node.file, node)


def draw_figure(path: Path, figure: Figure) -> None:
    """Draw one figure into `path`."""
    match figure.data:
        case Throughputs():
            throughput.draw(path, figure.data)
        case LossCurves():
            losses.draw(path, figure.data)
        case LearningCurves():
            learning.draw(path, figure.data)
        case TutorialBars():
            pipelines.tutorial_bars(path, figure.data)
        case SweepCurve():
            pipelines.sweep_curve(path, figure.data)
        case Timeline():
            pipelines.timeline(path, figure.data)
        case _:
            assert_never(figure.data)
