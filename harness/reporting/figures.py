"""The pictures of a report: which there are, what each shows, and its caption. `plots` draws them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from harness.reporting import fits, pipeline_figures, relative_figures, sweep, timelines
from harness.reporting.contrasts import Group
from harness.reporting.descriptions import precisions
from harness.reporting.figure_titles import labels, title
from harness.reporting.formatting import supported
from harness.reporting.model import Figure, Node, Paragraph, paragraph
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

MOST_ROWS, MOST_CURVES, MOST_POINTS, MOST_STAGES, MOST_PICTURES = 100, 48, 40, 32, 12
"""What a picture can show: rows of dots, curves, points of a sweep, stages. And how many pictures of a kind there
are."""
LONGEST_NAME = 80  # characters of a file's name that come from a record


def find(cells: Sequence[Cell]) -> list[Node]:
    """All pictures for which there are cells. A sentence stands for those that nobody could read."""
    names: set[str] = set()
    found: list[Node] = []
    compared = relative_figures.groups(cells)
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        resident = [cell for cell in group if cell.spec.protocol == "resident" and not cell.spec.training]
        timed = [cell for cell in resident if cell.throughput is not None]
        curves = [cell for cell in resident if cell.first.losses]
        learned = [cell for cell in group if any(len(result.epochs) > 1 for result in cell.launches)]
        for kind, shown, make, most in (
            ("throughput", timed, throughputs, MOST_ROWS),
            ("losses", curves, losses, MOST_CURVES),
            ("learning", learned, learning, MOST_CURVES),
        ):
            if len(shown) > most:
                found.append(_left_out(f"{kind} of {workload[0]} ({workload[1]})", f"{len(shown)} cells", most))
            elif shown:
                found.append(make(_file(names, kind, *workload), shown))
        found += _relative(names, workload, compared)
        found += _fits(names, workload, fits.find(group))
    if any(cell.spec.protocol == "from_host" for cell in cells):
        found.append(pipeline_figures.tutorial_bars(_file(names, "tutorial"), cells))
    return found + _sweeps(names, sweep.find(cells)) + _timelines(names, timelines.chosen(cells))


def _relative(names: set[str], workload: tuple[str, str], compared: Sequence[Group]) -> list[Node]:
    shown = [group for group in compared if (group.best.spec.workload, group.best.spec.size) == workload]
    rows = sum(len(group.cells) for group in shown)
    if rows > MOST_ROWS:
        return [_left_out(f"relative speeds of {workload[0]} ({workload[1]})", f"{rows} cells", MOST_ROWS)]
    return [relative_figures.picture(_file(names, "relative", *workload), shown, compared)] if shown else []


def _fits(names: set[str], workload: tuple[str, str], sweeps: Sequence[fits.BatchSweep]) -> list[Node]:
    shown = [swept for swept in sweeps if any(map(fits.peak_bytes, swept.timed))]
    if len(shown) > MOST_CURVES:
        return [_left_out(f"batches of {workload[0]} ({workload[1]})", f"{len(shown)} lines", MOST_CURVES)]
    return [fits.picture(_file(names, "fits", *workload), shown)] if shown else []


def _sweeps(names: set[str], sweeps: Sequence[sweep.Sweep]) -> list[Node]:
    found: list[Node] = []
    for number, swept in enumerate(sweeps[:MOST_PICTURES], 1):
        if len(swept.points) > MOST_POINTS:
            found.append(_left_out(f"sweep of {swept.option}", f"{len(swept.points)} values", MOST_POINTS))
        else:
            found.append(pipeline_figures.sweep_curve(_file(names, "sweep", str(number), swept.option), swept))
    if len(sweeps) > MOST_PICTURES:
        found.append(_left_out("other sweeps", f"{len(sweeps)} sweeps", MOST_PICTURES))
    return found


def _timelines(names: set[str], cells: Sequence[Cell]) -> list[Node]:
    found: list[Node] = []
    for number, cell in enumerate(cells[:MOST_PICTURES], 1):
        stages = len({span.stage for span in cell.first.spans})
        if stages > MOST_STAGES:
            found.append(_left_out(f"timeline of {cell.title}", f"{stages} stages", MOST_STAGES))
        else:
            file = _file(names, "timeline", str(number), cell.spec.strategy)
            found.append(pipeline_figures.timeline(file, cell))
    if len(cells) > MOST_PICTURES:
        found.append(_left_out("other timelines", f"{len(cells)} timelines", MOST_PICTURES))
    return found


def _left_out(what: str, holds: str, most: int) -> Paragraph:
    """The sentence in place of a picture, or of some, that nobody could read."""
    return paragraph(f"No picture of the {what}: there are {holds}, and more than {most} are illegible.")


def _file(names: set[str], *parts: str) -> str:
    """A file name of these parts that is not among `names`, and is added to them. It never leaves the report's folder:
    a record may have come from somebody else, and its texts hold anything."""
    stem = re.sub(r"[^\w.=+-]+", "-", "-".join(parts), flags=re.ASCII)[:LONGEST_NAME]
    number, name = 1, f"{stem}.png"
    while name in names:
        number += 1
        name = f"{stem}-{number}.png"
    names.add(name)
    return name


def throughputs(file: str, cells: Sequence[Cell]) -> Figure:
    """The throughputs of cells of one workload, which all have one."""
    shown = tuple(
        Throughput(
            label=label,
            framework=cell.spec.framework,
            track=cell.spec.track,
            devices=cell.spec.devices,
            mean=cell.throughput or 0,
            written=supported(cell.throughput or 0, cell.estimate.interval if cell.estimate else None),
            interval=cell.estimate.interval if cell.estimate else None,
            ideal=_ideal(cell),
            launches=cell.throughputs,
        )
        for cell, label in zip(cells, labels(cells), strict=True)
    )
    caption = f"Throughput of {cells[0].spec.workload}. {_dot(shown)}"
    if any(each.ideal for each in shown):
        caption += " A diamond is the ideal: the speed of single in the same framework, times the devices."
    if len({cell.spec.track for cell in cells}) > 1:
        caption += " Hollow dots are untuned, filled dots are tuned."
    data = Throughputs(title=title(cells), unit=cells[0].first.unit, cells=shown)
    return Figure(file=file, caption=caption, data=data)


def _dot(cells: Sequence[Throughput]) -> str:
    """What dot, line and ticks of the picture are, as far as a cell has them."""
    if all(len(each.launches) <= 1 for each in cells):
        return "The dot is a cell's only launch."
    line = ", the line its 95% interval" if any(each.interval for each in cells) else ""
    return f"The dot is the mean of the launches{line}, and each tick a launch."


def _ideal(cell: Cell) -> float | None:
    """The speed of single times the devices, for a cell on several; None if it is not known."""
    if cell.single_throughput is None or cell.spec.devices == 1:
        return None
    return cell.spec.devices * cell.single_throughput


def losses(file: str, cells: Sequence[Cell]) -> Figure:
    """The loss curves of cells of one workload."""
    curves = tuple(
        LossCurve(
            label=label,
            framework=cell.spec.framework,
            global_batch=cell.spec.global_batch,
            losses=cell.first.losses,
            golden=cell.first.golden_losses,
            by_numpy=cell.first.golden_by != "device",
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
