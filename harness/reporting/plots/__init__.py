"""The pictures of a report as PNG files, one module per kind. Each is drawn from the data in its figure alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import assert_never

from harness.reporting.model import Figure, Node, Report, Section, paragraph
from harness.reporting.picture_data import (
    Fits,
    LearningCurves,
    LossCurves,
    Relatives,
    SweepCurve,
    Throughputs,
    Timeline,
    TutorialBars,
)
from harness.reporting.plots import fits, learning, losses, pipelines, relative, style, throughput
from harness.reporting.plots.style import literal
from harness.spec.text import mapped


def draw(folder: Path, report: Report) -> Report:
    """Draw all figures of a report into `folder`.

    Returns the report without figures that cannot be drawn, each with a sentence in its place: no picture is worth a
    report. Raises OSError if a file cannot be written.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box
        return Report(report.title, tuple(_drawn(folder, node) for node in report.body))


def _drawn(folder: Path, node: Node) -> Node:
    if isinstance(node, Section):
        return Section(node.title, tuple(_drawn(folder, each) for each in node.body))
    if isinstance(node, Figure):
        try:
            draw_figure(folder / node.file, node)
        except OSError:
            raise
        except Exception as error:  # matplotlib may raise anything for numbers that nobody has thought of
            style.plt.close("all")
            return paragraph(f"No picture {node.file}: it cannot be drawn ({type(error).__name__}: {error}).")
    return node


def draw_figure(path: Path, figure: Figure) -> None:
    """Draw one figure into `path`."""
    data = mapped(figure.data, literal)
    match data:
        case Throughputs():
            throughput.draw(path, data)
        case Relatives():
            relative.draw(path, data)
        case LossCurves():
            losses.draw(path, data)
        case LearningCurves():
            learning.draw(path, data)
        case TutorialBars():
            pipelines.tutorial_bars(path, data)
        case SweepCurve():
            pipelines.sweep_curve(path, data)
        case Fits():
            fits.draw(path, data)
        case Timeline():
            pipelines.timeline(path, data)
        case _:
            assert_never(data)
