"""The picture of small differences: each cell's speed relative to that of the fastest one that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import contrasts, verdict_words
from harness.reporting.contrasts import Group
from harness.reporting.figure_titles import labels
from harness.reporting.model import Figure
from harness.reporting.picture_data import Relative, RelativePanel, Relatives
from harness.reporting.summary import Cell
from harness.statistics.intervals import Interval
from harness.statistics.ratios import Ratio

CAPTION = (
    "How much slower each ranked cell of {workload} is than the fastest one, the first of its panel: the mean ratio "
    "within rounds, and its 95% interval. Cells may tie within the grey band, the margin. The axes are zoomed and do "
    "not begin at a speed of 0; an arrow stands for a cell beyond the axis."
)


def groups(cells: Sequence[Cell]) -> list[Group]:
    """The groups of cells that the verdict compares, if there are any. Speeds of CPU devices are not compared."""
    ran = [cell for cell in cells if cell.status == "ok" and not cell.spec.training and cell.spec.platform != "cpu"]
    return [group for group in contrasts.groups(ran, contrasts.twins(ran)) if any(group.verdicts)]


def picture(file: str, shown: Sequence[Group], others: Sequence[Group]) -> Figure:
    """The differences in these groups. `others`: all groups of the report, from which titles tell them apart."""
    panels = tuple(_panel(group, others) for group in shown)
    caption = CAPTION.format(workload=shown[0].best.spec.workload)
    return Figure(file=file, caption=caption, data=Relatives(panels=panels))


def _panel(group: Group, others: Sequence[Group]) -> RelativePanel:
    best, *names = labels(group.cells)
    return RelativePanel(
        title=verdict_words.where(group, others),
        best=best,
        framework=group.best.spec.framework,
        margin_percent=100 * group.margin,
        cells=tuple(
            _relative(name, cell, verdict.ratio.inverse)
            for name, cell, verdict in zip(names, group.cells[1:], group.verdicts, strict=True)
            if verdict is not None
        ),
    )


def _relative(label: str, cell: Cell, ratio: Ratio) -> Relative:
    """`ratio`: the cell's speed over that of the fastest."""
    found = ratio.interval
    return Relative(
        label=label,
        framework=cell.spec.framework,
        percent=100 * (ratio.value - 1),
        interval=found and Interval(100 * (found.low - 1), 100 * (found.high - 1), found.confidence),
    )
