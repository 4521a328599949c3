"""Timelines: which stage worked on which micro-batch when, and how much of the devices' time was idle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.reporting.formatting import number
from harness.reporting.summary import Cell
from harness.spec import Span

MOST_MICRO_BATCHES = 16  # in a picture, more are illegible
DISTURBED = 2.0  # times the timed step: a traced step that takes longer tells more of the tracing than of the step


def idle_share(spans: Sequence[Span]) -> float:
    """Share of the stages' time, from the first span to the last, that lies outside all spans.

    It is a lower bound: within a span, a device may still wait for the launch of its next kernel.
    """
    busy = busy_stages(spans)
    return 1 - sum(busy) / (len(busy) * traced_seconds(spans))


def counted_once(spans: Sequence[Span]) -> Iterator[tuple[Span, float]]:
    """The spans as they start, each with its seconds that no earlier span of its stage covers."""
    until: dict[int, float] = {}
    for span in sorted(spans, key=lambda span: span.start):
        covered = until.get(span.stage, float("-inf"))
        yield span, max(0.0, span.end - max(span.start, covered))
        until[span.stage] = max(covered, span.end)


def busy_seconds(spans: Sequence[Span], stage: int) -> float:
    """Seconds in which the stage worked. Overlapping spans count once."""
    return sum(seconds for span, seconds in counted_once(spans) if span.stage == stage)


def busy_stages(spans: Sequence[Span]) -> list[float]:
    """Seconds in which each stage worked, in the order of the stages."""
    return [busy_seconds(spans, stage) for stage in sorted({span.stage for span in spans})]


def busy_words(spans: Sequence[Span], *, joined: str = " and ") -> str:
    """The milliseconds of each stage: "14.1 and 10.5"."""
    return joined.join(f"{number(1e3 * seconds)}" for seconds in busy_stages(spans))


def overlap_share(spans: Sequence[Span]) -> float:
    """Share of the time from the first span to the last in which more than one stage worked."""
    # between two neighbouring moments, the set of working stages does not change
    moments = sorted({moment for span in spans for moment in (span.start, span.end)})
    if not moments:
        return 0.0
    together = 0.0
    for start, end in itertools.pairwise(moments):
        if len({span.stage for span in spans if span.start < end and span.end > start}) > 1:
            together += end - start
    return together / (moments[-1] - moments[0])


def as_early_as_possible(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same work without any waiting: the ideal that a traced step is drawn beside.

    Each stage keeps its order and each span its length; of one that overlaps an earlier one of its stage, only the rest
    counts. A span starts when its stage is free and its input is there: a forward's comes from the stage before, a
    backward's from the stage after, and the last stage's backward needs its own forward.
    """
    last = max((span.stage for span in spans), default=0)
    ended: dict[tuple[str, int, int], float] = {}  # by phase, stage and micro-batch
    free: dict[int, float] = {}  # since when a stage is free here
    found = []
    for span, seconds in counted_once(spans):
        stage, number = span.stage, span.micro_batch
        if span.phase == "forward":
            source = ("forward", stage - 1, number)
        else:
            source = ("forward", stage, number) if stage == last else ("backward", stage + 1, number)
        start = max(free.get(stage, 0.0), ended.get(source, 0.0))
        free[stage] = ended[span.phase, stage, number] = start + seconds
        found.append(replace(span, start=start, end=start + seconds))
    return tuple(found)


def traced_seconds(spans: Sequence[Span]) -> float:
    """Seconds from the first span to the last."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def tracing_cost(cell: Cell) -> str:
    """A sentence about a cell whose traced step took more than DISTURBED times as long as a timed one, or ""."""
    if not cell.first.spans or not cell.step_seconds:
        return ""
    times = traced_seconds(cell.first.spans) / cell.step_seconds
    if times <= DISTURBED:
        return ""
    return f"The traced step took {times:.1f} times as long as a timed one, so most of what it shows is the tracing."


def micro_batch_count(spans: Sequence[Span]) -> int:
    """How many micro-batches the spans cover."""
    return len({span.micro_batch for span in spans})


def chosen(cells: Sequence[Cell]) -> list[Cell]:
    """The cells whose timelines are drawn.

    For each workload and strategy, these are the fastest cell that is legible, and the cell with six micro-batches, as
    in the tutorial.
    """
    drawn: dict[tuple, Cell] = {}
    for cell in cells:
        spans = cell.first.spans
        if not spans or micro_batch_count(spans) > MOST_MICRO_BATCHES:
            continue
        key = (cell.spec.workload, cell.spec.size, cell.spec.strategy)
        before = drawn.get((*key, "fastest"))
        if before is None or (cell.throughput or 0) > (before.throughput or 0):
            drawn[*key, "fastest"] = cell
        if micro_batch_count(spans) == 6:
            drawn[*key, "six"] = cell
    return list({cell.spec.cell: cell for cell in drawn.values()}.values())
