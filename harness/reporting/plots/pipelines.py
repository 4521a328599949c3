"""The pictures of model parallelism: the tutorial, sweeps, and timelines of traced steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from harness.reporting import sweep, timelines, tutorial
from harness.reporting.descriptions import spreads
from harness.reporting.plots.style import COLOURS, CPU_STAMP, colour_of, finish, plt, save
from harness.reporting.summary import Cell
from harness.results.intervals import deviation
from harness.spec.partition import bubble

LOGARITHMIC = 20  # above this ratio of times, a linear axis would show the shorter ones as one


def tutorial_bars(path: Path, cells: Sequence[Cell]) -> str:
    """Draw the tutorial's published times beside the measured ones into `path`; returns the caption."""
    figure, panels = plt.subplots(1, 3, figsize=(11, 4))
    panels[0].bar(list(tutorial.PUBLISHED), list(tutorial.PUBLISHED.values()), color="0.6")
    panels[0].set_title("published", fontsize=10)
    drawn = None
    for axes, protocol in zip(panels[1:], tutorial.PROTOCOLS, strict=True):
        found = tutorial.rows(cells, protocol)
        times = {name: tutorial.repeats(found[name]) for name in tutorial.PUBLISHED if name in found}
        drawn = drawn or next(iter(found.values()), None)
        means = [statistics.fmean(values) for values in times.values()]
        errors = [deviation(values) for values in times.values()]
        axes.bar(list(times), means, yerr=errors, capsize=6, color=COLOURS["torch"], alpha=0.8)
        axes.set_title(f"here, {protocol}", fontsize=10)
    for axes in panels:
        axes.set_ylabel("seconds for 3 batches")
        axes.tick_params(axis="x", labelrotation=30)
        axes.grid(axis="y", alpha=0.3)
    if drawn is not None and drawn.spec.platform == "cpu":
        figure.suptitle(CPU_STAMP, fontsize=10)
    figure.tight_layout()
    save(figure, path)
    return (
        "ResNet-50 on one device, model parallel and as a pipeline: as published, and here with both ways of timing. "
        "Mean and standard deviation over repeats. Note the different y-axes."
    )


def sweep_curve(path: Path, found: sweep.Sweep) -> str:
    """Draw a sweep's step times into `path`; returns the caption."""
    figure, axes = plt.subplots(figsize=(7.5, 4))
    # choices are side by side, numbers on a logarithmic axis
    numbers = not isinstance(found.points[0].value, str)
    values = [point.value for point in found.points] if numbers else list(range(len(found.points)))
    colour = colour_of(found.cells[0])
    means = [1e3 * point.mean for point in found.points]
    ranges = list(zip(*((1e3 * (p.mean - p.low), 1e3 * (p.high - p.mean)) for p in found.points), strict=True))
    axes.errorbar(values, means, yerr=ranges, color=colour, fmt="o-" if numbers else "o", capsize=4, label="measured")
    ideal = [(point.value, 1e3 * point.ideal) for point in found.points if point.ideal is not None]
    if ideal:
        axes.plot(*zip(*ideal, strict=True), color="0.4", linestyle="--", marker=".", label="ideal: only the bubble")
    if found.single is not None:
        axes.axhline(1e3 * found.single, color="0.7", label="single device, whole batch")
    if numbers:
        axes.set_xscale("log")
    else:
        axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xticks(values, [point.name for point in found.points])
    if max(means) > LOGARITHMIC * min(means):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.minorticks_off()
    axes.set_xlabel(found.option)
    axes.set_ylabel("ms per step")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    spec = found.cells[0].spec
    finish(figure, path, found.cells, of=f"{spec.strategy} by {found.option}, {spec.protocol}: ")
    return (
        f"Step time of {spec.strategy} by {found.option} ({spec.protocol}): mean and range over {spreads(found.cells)}."
    )


def timeline(path: Path, cell: Cell) -> str:
    """Draw what each stage did in a traced step into `path`; returns the caption."""
    spans = cell.first.spans
    stages = sorted({span.stage for span in spans})
    count = timelines.micro_batch_count(spans)
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.6 * len(stages)))
    palette, paper = plt.get_cmap("viridis"), {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
    for span in spans:
        colour = palette(span.micro_batch / max(1, count - 1) * 0.85)
        style = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.6}
        if span.phase == "backward":
            style |= {"hatch": "///", "alpha": 0.75}
        axes.broken_barh([(1e3 * span.start, 1e3 * (span.end - span.start))], (span.stage - 0.4, 0.8), **style)
        middle = 1e3 * (span.start + span.end) / 2
        label = f"{'F' if span.phase == 'forward' else 'B'}{span.micro_batch}"
        axes.text(middle, span.stage, label, ha="center", va="center", fontsize=7, bbox=paper)
    axes.set_yticks(stages, [f"stage {stage}" for stage in stages])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    finish(figure, path, [cell], of=f"{cell.title}: ")
    clock = "the host's clock" if cell.spec.platform == "cpu" else "events in the devices' queues"
    return (
        f"One step of {cell.title}, timed by {clock}. F: forward; B: backward (hatched); one colour per micro-batch. "
        f"The stages are idle for at least {100 * timelines.idle_share(spans):.0f}% of the time; the bubble formula "
        f"gives {100 * bubble(len(stages), count):.0f}%."
    )
