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
from harness.reporting.plots.style import literal
from harness.spec.text import mapped


def draw(folder: Path, report: Report) -> None:
    """Draw all figures of a report into `folder`."""
    for node in walk(report):
        if isinstance(node, Figure):
            draw_figure(folder / node.file, node)


def draw_figure(path: Path, figure: Figure) -> None:
    """Draw one figure into `path`."""
    data = mapped(figure.data, literal)
    match data:
        case Throughputs():
            throughput.draw(path, data)
        case LossCurves():
            losses.draw(path, data)
        case LearningCurves():
            learning.draw(path, data)
        case TutorialBars():
            pipelines.tutorial_bars(path, data)
        case SweepCurve():
            pipelines.sweep_curve(path, data)
        case Timeline():
            pipelines.timeline(path, data)
        case _:
            assert_never(data)
