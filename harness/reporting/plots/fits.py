"""The picture of what fits: a line per program, memory against speed, with the batches at its points."""

from __future__ import annotations

from pathlib import Path

from harness.reporting.picture_data import Fits
from harness.reporting.plots.style import MARKERS, colour_of, finish, plt

LOGARITHMIC = 4, 20  # ratios of memories and of speeds from which their axes are logarithmic


def draw(path: Path, data: Fits) -> None:
    """Draw throughput over peak memory into `path`."""
    figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
    drawn: dict[str, int] = {}
    for curve in data.curves:
        number = drawn[curve.framework] = drawn.get(curve.framework, -1) + 1
        memory, means = [point.peak_mebibytes for point in curve.points], [point.mean for point in curve.points]
        full = f", {curve.full} does not fit" if curve.full else ""
        style = {"color": colour_of(curve.framework), "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        axes.plot(memory, means, label=f"{curve.label}{full}", linestyle="-" if number == 0 else "--", **style)
        for point, x, y in zip(curve.points, memory, means, strict=True):
            axes.annotate(f"{point.global_batch}", (x, y), (3, 4), textcoords="offset points", fontsize=7)
    points = [point for curve in data.curves for point in curve.points]
    if max(p.peak_mebibytes for p in points) >= LOGARITHMIC[0] * min(p.peak_mebibytes for p in points):
        axes.set_xscale("log", base=2)
    if max(p.mean for p in points) >= LOGARITHMIC[1] * min(p.mean for p in points):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel(f"peak {data.memory}, MiB")
    axes.set_ylabel(f"{data.unit}s per second")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    finish(figure, path, data.title)
