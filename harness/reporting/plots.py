"""The pictures of a report. Long because all are here, each a function of its own."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from harness.reporting import sweep, timelines, tutorial
from harness.reporting.summary import Cell, batches, normalizes, options_text, precisions, spreads
from harness.results.intervals import deviation
from harness.spec.partition import bubble

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

# Okabe & Ito's palette, which people with colour-blindness can tell apart; a framework has the same colour everywhere.
COLOURS = {"torch": "#D55E00", "jax": "#0072B2", "tf": "#E69F00"}
OTHER_COLOUR = "#009E73"
MARKERS = "osD^vP*X<>p"
CROWDED = 8  # more curves of one framework, and its colour alone does not tell them apart
LOGARITHMIC = 20  # so many times the least time, and a linear axis would show the others as one
CPU_STAMP = "virtual CPU devices: correctness only"


def draw(folder: Path, cells: Sequence[Cell]) -> dict[str, str]:
    """Draw what the cells allow into `folder`; returns file names with their captions."""
    pictures = {}
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        name = "-".join(workload)
        resident = [cell for cell in group if cell.spec.protocol == "resident" and not cell.spec.training]
        timed = [cell for cell in resident if cell.throughput is not None]
        curves = [cell for cell in resident if cell.first.losses]
        learned = [cell for cell in group if any(len(result.epochs) > 1 for result in cell.launches)]
        if timed:
            pictures[f"throughput-{name}.png"] = _throughput(folder / f"throughput-{name}.png", timed)
        if curves:
            pictures[f"losses-{name}.png"] = _losses(folder / f"losses-{name}.png", curves)
        if learned:
            pictures[f"learning-{name}.png"] = _learning(folder / f"learning-{name}.png", learned)
    if any(cell.spec.protocol == "from_host" for cell in cells):
        pictures["tutorial.png"] = _tutorial(folder / "tutorial.png", cells)
    for number, found in enumerate(sweep.find(cells), 1):
        name = f"sweep-{number}-{found.option}.png"
        pictures[name] = _sweep(folder / name, found)
    for number, cell in enumerate(timelines.chosen(cells), 1):
        name = f"timeline-{number}-{cell.spec.strategy}.png"
        pictures[name] = _timeline(folder / name, cell)
    return pictures


def labels(cells: Sequence[Cell]) -> list[str]:
    """Names for a picture: with their options, on a line of their own, only where they would else be the same."""
    plain = [cell.plain_title for cell in cells]
    return [
        name if plain.count(name) == 1 or not options_text(cell.spec) else f"{name}\n{options_text(cell.spec)}"
        for name, cell in zip(plain, cells, strict=True)
    ]


def _throughput(path: Path, cells: Sequence[Cell]) -> str:
    figure, axes = plt.subplots(figsize=(8.5, 1.2 + 0.42 * len(cells)), layout="constrained")
    two_tracks = len({cell.spec.track for cell in cells}) > 1
    for row, cell in enumerate(reversed(cells)):
        colour = COLOURS.get(cell.spec.framework, OTHER_COLOUR)
        axes.hlines(row, cell.low or 0, cell.high or 0, color=colour, linewidth=2)
        points = cell.throughputs if len(cell.throughputs) > 1 else ()
        axes.plot(points, [row] * len(points), "|", color=colour, markersize=9)
        face = "white" if two_tracks and cell.spec.track == "defaults" else colour
        axes.plot([cell.throughput or 0], [row], "o", color=colour, markerfacecolor=face, markersize=6)
    axes.set_yticks(range(len(cells)), list(reversed(labels(cells))))
    axes.set_xlim(left=0)
    axes.set_ylim(-0.7, len(cells) - 0.3)
    if two_tracks:
        for label, face in (("untuned", "white"), ("tuned", "0.4")):
            axes.plot([], [], "o", color="0.4", markerfacecolor=face, label=label)
        axes.legend(fontsize=8)
    axes.set_xlabel(f"{cells[0].first.unit}s per second")
    axes.grid(axis="x", alpha=0.3)
    _finish(figure, axes, path, cells)
    spread = spreads(cells)
    caption = (
        f"Throughput of {cells[0].spec.workload}: the dot is the median launch, the line the range of its {spread}"
    )
    return caption + ("; hollow: untuned, filled: tuned." if two_tracks else ".")


def _losses(path: Path, cells: Sequence[Cell]) -> str:
    # one golden curve for each way to share BatchNorm statistics; without BatchNorm there is only one
    curves = dict.fromkeys((cell.spec.global_batch, cell.first.golden_losses) for cell in cells)
    goldens = [(batch, golden) for batch, golden in curves if golden]
    sizes, names = sorted({batch for batch, _ in curves}), labels(cells)
    count = len(sizes) + bool(goldens)
    figure, panels = plt.subplots(1, count, figsize=(3 + 4 * count, 5.5), squeeze=False)
    panel = dict(zip(sizes, panels[0], strict=False))
    for index, (batch, golden) in enumerate(goldens):
        label = "golden (NumPy float64)" if index == 0 else None
        panel[batch].plot(range(1, len(golden) + 1), golden, color="0.8", linewidth=7, label=label)
    alone = len({cell.spec.framework for cell in cells}) == 1 and len(cells) > CROWDED
    for index, cell in enumerate(cells):
        losses, golden = cell.first.losses, cell.first.golden_losses
        colour = COLOURS.get(cell.spec.framework, OTHER_COLOUR)
        if alone:
            colour = plt.get_cmap("viridis")(0.9 * index / len(cells))
        style = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 4, "linewidth": 1}
        # dashes and markers shift from curve to curve, so that equal ones stay visible under one another
        dashes = {"markevery": (index % len(losses), max(1, len(cells))), "linestyle": (0, (4, index % 8))}
        panel[cell.spec.global_batch].plot(range(1, len(losses) + 1), losses, label=names[index], **dashes, **style)
        if golden:
            off = [max(abs(a - b) / abs(b), 1e-17) for a, b in zip(losses, golden, strict=False)]
            panels[0][-1].plot(range(1, len(off) + 1), off, alpha=0.8, **style)
    for batch, axes in panel.items():
        axes.set_ylabel("loss")
        if len(sizes) > 1:
            axes.set_title(f"batch {batch}", fontsize=10)
    if goldens:
        panels[0][-1].set_yscale("log")
        panels[0][-1].set_ylabel("relative distance from golden")
    for axes in panels[0]:
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.set_layout_engine("constrained")
    _finish(figure, panels[0][0], path, cells)
    spec = cells[0].spec
    caption = f"Loss of {spec.workload} from the initial weights in {precisions(cells)}, all cells over one another"
    if len(goldens) > len(sizes):
        caption += "; BatchNorm over other samples, another algorithm or another rate has a golden curve of its own"
    elif any(normalizes(cell.spec) and cell.spec.normalization != "global" for cell in cells):
        caption += "; BatchNorm over other samples has a curve of its own"
    if any(cell.spec.algorithm == "asynchronous" for cell in cells):
        caption += " (asynchronous: for workers in turn, from whose order a real run departs)"
    return caption + ("; right, their distance from the golden curve." if goldens else ".")


def _learning(path: Path, cells: Sequence[Cell]) -> str:
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.5), sharey=True)
    for index, (cell, label) in enumerate(zip(cells, labels(cells), strict=True)):
        colour = COLOURS.get(cell.spec.framework, OTHER_COLOUR)
        for result in cell.launches:
            accuracy = [100 * epoch.test_accuracy for epoch in result.epochs]
            samples = [epoch.samples for epoch in result.epochs]
            seconds = list(itertools.accumulate(epoch.seconds for epoch in result.epochs))
            first = result is cell.launches[0]
            style = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 4}
            style |= {"linestyle": (0, (4, index % 8)), "linewidth": 1, "alpha": 1.0 if first else 0.35}
            panels[0].plot(samples, accuracy, label=label if first else None, **style)
            panels[1].plot(seconds, accuracy, **style)
    training = cells[0].spec.training
    for axes, name in zip(panels, (f"{cells[0].first.unit}s trained on", "seconds of training"), strict=True):
        axes.axhline(100 * training.target_accuracy if training else 0, color="0.7", linewidth=1)
        axes.set_xlabel(name)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.set_layout_engine("constrained")
    _finish(figure, panels[0], path, cells)
    return (
        f"Test accuracy of {cells[0].spec.workload} after each epoch, against samples and against seconds; every seed "
        "a line, the target grey."
    )


def _tutorial(path: Path, cells: Sequence[Cell]) -> str:
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
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return (
        "ResNet-50 on one device, model parallel and as a pipeline: as published, and here by both ways of timing, "
        "mean and standard deviation over repeats. Each panel has an axis of its own."
    )


def _sweep(path: Path, found: sweep.Sweep) -> str:
    figure, axes = plt.subplots(figsize=(7.5, 4))
    # choices stand side by side, numbers on a logarithmic axis
    numbers = not isinstance(found.points[0].value, str)
    values = [point.value for point in found.points] if numbers else list(range(len(found.points)))
    colour = COLOURS.get(found.cells[0].spec.framework, OTHER_COLOUR)
    means = [1e3 * point.mean for point in found.points]
    ranges = list(zip(*((1e3 * (p.mean - p.low), 1e3 * (p.high - p.mean)) for p in found.points), strict=True))
    axes.errorbar(values, means, yerr=ranges, color=colour, fmt="o-" if numbers else "o", capsize=4, label="measured")
    ideal = [(point.value, 1e3 * point.ideal) for point in found.points if point.ideal is not None]
    if ideal:
        axes.plot(*zip(*ideal, strict=True), color="0.4", linestyle="--", marker=".", label="ideal: bubble only")
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
    axes.set_ylabel("ms a step")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    spec = found.cells[0].spec
    _finish(figure, axes, path, found.cells, of=f"{spec.strategy} by {found.option}, {spec.protocol}: ")
    return (
        f"Step time of {spec.strategy} by {found.option} ({spec.protocol}): "
        f"the mean of its {spreads(found.cells)} and their range."
    )


def _timeline(path: Path, cell: Cell) -> str:
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
    _finish(figure, axes, path, [cell], of=f"{cell.title}: ")
    clock = "the host's clock" if cell.spec.platform == "cpu" else "events in the devices' queues"
    return (
        f"One step of {cell.title}, by {clock}: F forward, B backward (hatched), one colour a micro-batch. Idle: "
        f"at least {100 * timelines.idle_share(spans):.0f}%; by the formula {100 * bubble(len(stages), count):.0f}%."
    )


def _finish(figure, axes, path: Path, cells: Sequence[Cell], of: str = "") -> None:
    spec = cells[0].spec
    title = f"{of}{spec.workload} ({spec.size}), batch {batches(cells)}, {precisions(cells)}"
    if spec.platform == "cpu":
        title += f" -- {CPU_STAMP}"
    figure.suptitle(title, fontsize=10)  # over the figure: narrow axes would cut it
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
