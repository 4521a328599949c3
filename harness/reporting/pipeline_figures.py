"""The pictures of model parallelism: the tutorial, sweeps, and timelines of traced steps."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import sweep, timelines, tutorial
from harness.reporting.figure_titles import CPU_STAMP, title
from harness.reporting.formatting import number
from harness.reporting.model import Figure
from harness.reporting.picture_data import Bar, BarPanel, SweepCurve, SweepPoint, Timeline, TutorialBars
from harness.reporting.summary import Cell
from harness.spec.partition import bubble


def tutorial_bars(file: str, cells: Sequence[Cell]) -> Figure:
    """The tutorial's published times beside the measured ones, with both ways of timing."""
    published = tuple(Bar(name=name, mean=seconds, interval=None) for name, seconds in tutorial.PUBLISHED.items())
    panels = [BarPanel(title="published", bars=published)]
    drawn = []
    for protocol in tutorial.PROTOCOLS:
        found = tutorial.rows(cells, protocol)
        drawn += found.values()
        times = {name: tutorial.three_batches(found[name]) for name in tutorial.PUBLISHED if name in found}
        bars = tuple(
            Bar(name=name, mean=each.value, interval=each.interval) for name, each in times.items() if each is not None
        )
        panels.append(BarPanel(title=f"here, {protocol}", bars=bars))
    stamp = CPU_STAMP if drawn and drawn[0].spec.platform == "cpu" else ""
    caption = (
        "ResNet-50 on one device, model parallel and as a pipeline: as published, and here with both ways of timing. "
        "Mean over launches, with its 95% interval. Note the different y-axes."
    )
    return Figure(file=file, caption=caption, data=TutorialBars(title=stamp, panels=tuple(panels)))


def sweep_curve(file: str, found: sweep.Sweep) -> Figure:
    """The step times of a sweep."""
    first = found.cells[0]
    spec = first.spec
    points = tuple(
        SweepPoint(
            value=point.value,
            name=point.name,
            mean=point.mean,
            interval=point.interval,
            ideal=point.ideal,
        )
        for point in found.points
    )
    data = SweepCurve(
        title=title(
            found.cells, of=f"{first.named(options=False, workload=False)} by {found.option}, {spec.protocol}: "
        ),
        option=found.option,
        framework=spec.framework,
        points=points,
        single=found.single.step_seconds if found.single else None,
    )
    name = first.named(options=False)
    caption = f"Step time of {name} by {found.option} ({spec.protocol}): mean over launches and its 95% interval."
    return Figure(file=file, caption=caption, data=data)


def timeline(file: str, cell: Cell) -> Figure:
    """What each stage did in a traced step, beside the same work without any waiting."""
    spans = cell.first.spans
    ideal = timelines.as_early_as_possible(spans)
    stages, count = len(timelines.busy_stages(spans)), timelines.micro_batch_count(spans)
    by_events = cell.spec.platform == "gpu" and cell.spec.framework == "torch"
    clock = "events in the devices' queues" if by_events else "the host's clock"
    took, least = (1e3 * timelines.traced_seconds(each) for each in (spans, ideal))
    caption = (
        f"Above, one step of {cell.title}, timed by {clock}. F: forward; B: backward (hatched); one colour per "
        f"micro-batch. The stages are idle for at least {100 * timelines.idle_share(spans):.0f}% of the time; the "
        f"bubble formula gives {100 * bubble(stages, count):.0f}%. Below, the ideal: the same pieces, each as soon as "
        f"its stage is free and its input is there. It takes {number(least)} ms, where the step took {number(took)} ms."
    )
    if cost := timelines.tracing_cost(cell):
        caption = f"{caption} {cost}"
    data = Timeline(title=title([cell], of=f"{cell.named(workload=False)}: "), spans=spans, ideal=ideal)
    return Figure(file=file, caption=caption, data=data)
