"""The pictures of a report: which there are, what each shows, and its caption. `plots` draws them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.reporting import pipeline_figures, sweep, timelines
from harness.reporting.descriptions import precisions, spreads
from harness.reporting.figure_titles import labels, title
from harness.reporting.model import Figure
from harness.reporting.picture_data import (
    Accuracy,
    LearningCurve,
    LearningCurves,
    LossCurve,
    LossCurves,
    Throughput,
    Throughputs,
)
from harness.reporting.summary import Cell
from harness.spec import TrialResult


def find(cells: Sequence[Cell]) -> list[Figure]:
    """All pictures for which there are cells."""
    found = []
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        name = "-".join(workload)
        resident = [cell for cell in group if cell.spec.protocol == "resident" and not cell.spec.training]
        timed = [cell for cell in resident if cell.throughput is not None]
        curves = [cell for cell in resident if cell.first.losses]
        learned = [cell for cell in group if any(len(result.epochs) > 1 for result in cell.launches)]
        if timed:
            found.append(throughputs(f"throughput-{name}.png", timed))
        if curves:
            found.append(losses(f"losses-{name}.png", curves))
        if learned:
            found.append(learning(f"learning-{name}.png", learned))
    if any(cell.spec.protocol == "from_host" for cell in cells):
        found.append(pipeline_figures.tutorial_bars("tutorial.png", cells))
    for number, swept in enumerate(sweep.find(cells), 1):
        found.append(pipeline_figures.sweep_curve(f"sweep-{number}-{swept.option}.png", swept))
    for number, cell in enumerate(timelines.chosen(cells), 1):
        found.append(pipeline_figures.timeline(f"timeline-{number}-{cell.spec.strategy}.png", cell))
    return found


def throughputs(file: str, cells: Sequence[Cell]) -> Figure:
    """The throughputs of cells of one workload, which all have one."""
    shown = tuple(
        Throughput(
            label=label,
            framework=cell.spec.framework,
            track=cell.spec.track,
            median=cell.throughput or 0,
            low=cell.low or 0,
            high=cell.high or 0,
            launches=cell.throughputs,
        )
        for cell, label in zip(cells, labels(cells), strict=True)
    )
    caption = (
        f"Throughput of {cells[0].spec.workload}. The dot is the median launch, and the line is the range of the "
        f"{spreads(cells)}."
    )
    if len({cell.spec.track for cell in cells}) > 1:
        caption += " Hollow dots are untuned, filled dots are tuned."
    data = Throughputs(title=title(cells), unit=cells[0].first.unit, cells=shown)
    return Figure(file=file, caption=caption, data=data)


def losses(file: str, cells: Sequence[Cell]) -> Figure:
    """The loss curves of cells of one workload."""
    curves = tuple(
        LossCurve(
            label=label,
            framework=cell.spec.framework,
            global_batch=cell.spec.global_batch,
            losses=cell.first.losses,
            golden=cell.first.golden_losses,
        )
        for cell, label in zip(cells, labels(cells), strict=True)
    )
    return Figure(file=file, caption=_loss_caption(cells), data=LossCurves(title=title(cells), cells=curves))


def _loss_caption(cells: Sequence[Cell]) -> str:
    batch_sizes = {cell.spec.global_batch for cell in cells}
    references = {(cell.spec.global_batch, cell.first.golden_losses) for cell in cells if cell.first.golden_losses}
    caption = [f"Loss of {cells[0].spec.workload} in {precisions(cells)}, from the same initial weights in all cells."]
    if len(references) > len(batch_sizes):
        caption.append(
            "Cells with BatchNorm over other samples, another algorithm or another learning rate have their own "
            "reference."
        )
    elif any(cell.first.described.normalizes and cell.spec.normalization != "global" for cell in cells):
        caption.append("Cells whose BatchNorm normalizes over other samples follow another curve.")
    if any(cell.spec.algorithm == "asynchronous" for cell in cells):
        caption.append(
            "The reference of asynchronous cells lets workers take turns; a real run deviates from that order."
        )
    if references:
        caption.append("Right: the distance from the reference.")
    return " ".join(caption)


def learning(file: str, cells: Sequence[Cell]) -> Figure:
    """The accuracies of trainings of one workload, on the samples that the target is judged on."""
    curves = tuple(
        LearningCurve(
            label=label,
            framework=cell.spec.framework,
            seeds=tuple(_accuracies(result) for result in cell.launches),
        )
        for cell, label in zip(cells, labels(cells), strict=True)
    )
    training = cells[0].spec.training
    judged = "validation" if training and training.validation_share else "test"
    data = LearningCurves(
        title=title(cells),
        unit=cells[0].first.unit,
        judged=judged,
        target_percent=100 * training.target_accuracy if training else 0,
        cells=curves,
    )
    caption = (
        f"{judged.capitalize()} accuracy of {cells[0].spec.workload} after each epoch, over samples and over seconds. "
        "One line per seed; the grey line is the target."
    )
    return Figure(file=file, caption=caption, data=data)


def _accuracies(result: TrialResult) -> tuple[Accuracy, ...]:
    seconds = itertools.accumulate(epoch.seconds for epoch in result.epochs)
    return tuple(
        Accuracy(samples=epoch.samples, seconds=after, percent=100 * epoch.judged_accuracy)
        for epoch, after in zip(result.epochs, seconds, strict=True)
    )
