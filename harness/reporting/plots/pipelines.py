"""The pictures of model parallelism: the tutorial, sweeps, and timelines of traced steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.reporting.picture_data import Bar, SweepCurve, SweepPoint, Timeline, TutorialBars
from harness.reporting.plots.style import COLOURS, colour_of, finish, plt

LOGARITHMIC = 20  # above this ratio of times, a linear axis would show the shorter ones as one


def tutorial_bars(path: Path, data: TutorialBars) -> None:
    """Draw the tutorial's published times beside the measured ones into `path`."""
    figure, panels = plt.subplots(1, 3, figsize=(11, 4))
    published, *measured = data.panels
    panels[0].bar([bar.name for bar in published.bars], [bar.mean for bar in published.bars], color="0.6")
    for axes, panel in zip(panels[1:], measured, strict=True):
        means = [bar.mean for bar in panel.bars]
        names = [bar.name for bar in panel.bars]
        errors = _errors(panel.bars)
        axes.bar(names, means, yerr=errors, capsize=6, color=COLOURS["torch"], alpha=0.8)
        axes.set_ylim(0, 1.3 * max(means, default=1.0))
    for axes, panel in zip(panels, data.panels, strict=True):
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylabel("seconds for 3 batches")
        axes.tick_params(axis="x", labelrotation=30)
        axes.grid(axis="y", alpha=0.3)
    finish(figure, path, data.title)


def _errors(points: Sequence[Bar | SweepPoint], factor: float = 1.0) -> list[tuple[float, ...]]:
    """The distances from each mean to both ends of its interval, in the unit of the axis; 0 without an interval."""
    found = [
        (each.mean - each.interval.low, min(each.interval.high - each.mean, 1e3 * each.mean))
        if each.interval
        else (0.0, 0.0)
        for each in points
    ]
    return [tuple(factor * value for value in side) for side in zip(*found, strict=True)]


def sweep_curve(path: Path, data: SweepCurve) -> None:
    """Draw a sweep's step times into `path`."""
    figure, axes = plt.subplots(figsize=(7.5, 4))
    # choices are side by side, numbers on a logarithmic axis
    numbers = not isinstance(data.points[0].value, str)
    values = [point.value for point in data.points if not isinstance(point.value, str)] or range(len(data.points))
    colour = colour_of(data.framework)
    means = [1e3 * point.mean for point in data.points]
    errors = _errors(data.points, factor=1e3)
    axes.errorbar(values, means, yerr=errors, color=colour, fmt="o-" if numbers else "o", capsize=4, label="measured")
    ideal = [(point.value, 1e3 * point.ideal) for point in data.points if point.ideal is not None]
    if ideal:
        axes.plot(*zip(*ideal, strict=True), color="0.4", linestyle="--", marker=".", label="ideal: only the bubble")
    if data.single is not None:
        axes.axhline(1e3 * data.single, color="0.7", label="single device, whole batch")
    if numbers and min(values) <= 0:  # 0 has no logarithm: the axis is linear up to the smallest other value
        axes.set_xscale("symlog", linthresh=min((value for value in values if value > 0), default=1))
    elif numbers:
        axes.set_xscale("log")
    else:
        axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xticks(values, [point.name for point in data.points])
    if max(means) > LOGARITHMIC * min(means):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.3 * max(*means, 1e3 * (data.single or 0)))
    axes.minorticks_off()
    axes.set_xlabel(data.option)
    axes.set_ylabel("ms per step")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    finish(figure, path, data.title)


def timeline(path: Path, data: Timeline) -> None:
    """Draw what each stage did in a traced step, above the same work without any waiting, into `path`."""
    stages = sorted({span.stage for span in data.spans})
    height = 1.6 + 1.2 * len(stages)
    figure, panels = plt.subplots(2, 1, figsize=(10, height), sharex=True, layout="constrained")
    for axes, name, spans in zip(panels, ("traced", "ideal"), (data.spans, data.ideal), strict=True):
        _draw_stages(axes, spans)
        axes.set_yticks(stages, [f"stage {stage}" for stage in stages])
        axes.set_ylim(stages[-1] + 0.6, stages[0] - 0.6)
        axes.set_ylabel(name)
    panels[-1].set_xlabel("ms")
    finish(figure, path, data.title)


def _draw_stages(axes, spans) -> None:
    count = len({span.micro_batch for span in spans})
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
