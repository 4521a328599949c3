"""The pictures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from harness.report.summary import Cell

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

# Okabe & Ito's palette, which people with colour-blindness can tell apart; a framework has the same colour everywhere.
COLOURS = {"torch": "#D55E00", "jax": "#0072B2", "tf": "#E69F00"}
OTHER_COLOUR = "#009E73"
MARKERS = "osD^vP*X"
CPU_STAMP = "virtual CPU devices: correctness only"


def draw(folder: Path, cells: Sequence[Cell]) -> dict[str, str]:
    """Draw what the cells allow into `folder`; returns file names with their captions."""
    pictures = {}
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        name = "-".join(workload)
        timed = [cell for cell in group if cell.throughput is not None]
        curves = [cell for cell in group if cell.first.losses]
        if timed:
            pictures[f"throughput-{name}.png"] = _throughput(folder / f"throughput-{name}.png", timed)
        if curves:
            pictures[f"losses-{name}.png"] = _losses(folder / f"losses-{name}.png", curves)
    return pictures


def _throughput(path: Path, cells: Sequence[Cell]) -> str:
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.42 * len(cells)))
    for row, cell in enumerate(reversed(cells)):
        colour = COLOURS.get(cell.spec.framework, OTHER_COLOUR)
        axes.hlines(row, cell.low or 0, cell.high or 0, color=colour, linewidth=2)
        points = cell.throughputs if len(cell.throughputs) > 1 else ()
        axes.plot(points, [row] * len(points), "|", color=colour, markersize=9)
        axes.plot([cell.throughput or 0], [row], "o", color=colour, markersize=6)
    axes.set_yticks(range(len(cells)), [cell.title for cell in reversed(cells)])
    axes.set_xlim(left=0)
    axes.set_ylim(-0.7, len(cells) - 0.3)
    axes.set_xlabel(f"{cells[0].first.unit}s per second")
    axes.grid(axis="x", alpha=0.3)
    _finish(figure, axes, path, cells)
    spread = " and ".join(sorted({cell.spread_of for cell in cells}))
    return f"Throughput of {cells[0].spec.workload}: the dot is the median launch, the line the range of its {spread}."


def _losses(path: Path, cells: Sequence[Cell]) -> str:
    golden = cells[0].first.golden_losses
    figure, panels = plt.subplots(1, 2 if golden else 1, figsize=(10.5 if golden else 6.5, 4), squeeze=False)
    left = panels[0][0]
    if golden:
        left.plot(range(1, len(golden) + 1), golden, color="0.8", linewidth=7, label="golden (NumPy float64)")
    for index, cell in enumerate(cells):
        colour = COLOURS.get(cell.spec.framework, OTHER_COLOUR)
        losses = cell.first.losses
        steps = range(1, len(losses) + 1)
        # later curves are thinner and dashed, so that equal ones stay visible under one another
        style = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 4, "linewidth": 1}
        left.plot(
            steps, losses, markevery=(index, max(1, len(cells))), linestyle=(0, (4, index)), label=cell.title, **style
        )
        if golden:
            off = [max(abs(a - b) / abs(b), 1e-17) for a, b in zip(losses, golden, strict=False)]
            panels[0][1].plot(steps[: len(off)], off, alpha=0.8, **style)
    left.set_xlabel("step")
    left.set_ylabel("loss")
    left.legend(fontsize=8)
    left.grid(alpha=0.3)
    if golden:
        right = panels[0][1]
        right.set_yscale("log")
        right.set_xlabel("step")
        right.set_ylabel("relative distance from golden")
        right.grid(alpha=0.3)
    for axes in panels[0]:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(figure, left, path, cells)
    spec = cells[0].spec
    caption = f"Loss of {spec.workload} from the initial weights in {spec.precision}, all cells over one another"
    return caption + ("; right, their distance from the golden curve." if golden else ".")


def _finish(figure, axes, path: Path, cells: Sequence[Cell]) -> None:
    spec = cells[0].spec
    title = f"{spec.workload} ({spec.size}), batch {spec.global_batch}, {spec.precision}"
    if spec.platform == "cpu":
        title += f" -- {CPU_STAMP}"
    axes.set_title(title, fontsize=10, loc="left")
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
