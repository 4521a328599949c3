"""PyTorch's model-parallel tutorial: its published numbers, the measured ones, and which of its claims hold here."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.formatting import with_interval
from harness.reporting.summary import Cell
from harness.reporting.sweep import step_interval
from harness.reporting.values import Measured
from harness.statistics.intervals import scaled
from harness.statistics.verdicts import Verdict, judge

BATCHES = 3  # in a repeat of the tutorial
# Seconds for three batches of 120 images of 128 x 128, read off the text of
# https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html, which names neither its GPUs nor a spread.
PUBLISHED = {"single": 3.75, "model_parallel": 4.02, "pipeline at 20": 2.51, "pipeline at its best": 2.43}
PUBLISHED_BEST_SPLIT = 12
PUBLISHED_REPEATS = 10
PROTOCOLS = ("from_host", "resident")
PROTOCOL_WORDS = {
    "from_host": "Timed as in the tutorial",
    "resident": "Timed with batches already on the devices, after a warm-up",
}


def split_size(cell: Cell) -> int:
    """The size of a pipeline's micro-batches; 0 if it is given in another way."""
    size = cell.spec.options.get("split_size", 0)
    return size if isinstance(size, int) else 0


def three_batches(cell: Cell) -> Measured | None:
    """Seconds for three batches, at the cell's throughput."""
    if cell.step_seconds is None:
        return None
    return Measured(BATCHES * cell.step_seconds, scaled(step_interval(cell), BATCHES))


def repeats(cell: Cell) -> int:
    """How many repeats the time of three batches comes from, over all launches."""
    return sum(map(len, cell.blocks))


def rows(cells: Sequence[Cell], protocol: str) -> dict[str, Cell]:
    """The tutorial's four settings as measured by the newest version of a protocol; one that did not run is absent.

    The tutorial's split size of 20 is a sixth of its batch. With another batch, the sixth stands for it.
    """
    ran = [
        cell
        for cell in cells
        if cell.spec.workload == "resnet50" and cell.spec.protocol == protocol and cell.throughput is not None
    ]
    newest = max((cell.spec.protocol_version for cell in ran), default=1)
    ran = [cell for cell in ran if cell.spec.protocol_version == newest]
    found = {cell.spec.strategy: cell for cell in ran if cell.spec.strategy in ("single", "model_parallel")}
    pipelines = [cell for cell in ran if cell.spec.strategy == "pipeline" and split_size(cell)]
    for cell in pipelines:
        if split_size(cell) * 6 == cell.spec.global_batch:
            found["pipeline at 20"] = cell
    if pipelines:
        found["pipeline at its best"] = max(pipelines, key=lambda cell: cell.throughput or 0)
    return found


def verdict(cells: Sequence[Cell]) -> list[str]:
    """The pipeline's speed-up as published, then timed as in the tutorial, then with resident batches."""
    sentences = []
    for protocol in PROTOCOLS:
        found = rows(cells, protocol)
        pipelines = [found[name] for name in ("pipeline at 20", "pipeline at its best") if name in found]
        pipelines = [cell for cell in pipelines if cell.speedup is not None]
        if pipelines and "single" in found:
            sentences.append(f"{PROTOCOL_WORDS[protocol]}, it runs at {' and '.join(map(_speed, pipelines))} here.")
    if not sentences:
        return []
    settings = (("pipeline at 20", 20), ("pipeline at its best", PUBLISHED_BEST_SPLIT))
    published = " and ".join(
        f"{PUBLISHED['single'] / PUBLISHED[name]:.2f} (split_size {split})" for name, split in settings
    )
    return [f"In the tutorial, the pipeline runs at {published} times the speed of one GPU. {' '.join(sentences)}"]


def _speed(pipeline: Cell) -> str:
    """A pipeline's speed-up."""
    assert pipeline.over_single is not None, "the caller leaves out the others"
    ratio = pipeline.over_single
    return f"{with_interval(ratio.value, ratio.interval)} (split_size {split_size(pipeline)})"


def claims(cells: Sequence[Cell], protocol: str) -> list[str]:
    """Which of the tutorial's claims hold on this machine under one protocol."""
    found = rows(cells, protocol)
    if "single" not in found:
        return [f"Without a time of a single device ({protocol}), no claim can be judged."]
    judged = (
        ("model_parallel", "Model parallelism is slower than one device (by 7% in the tutorial)", True),
        ("pipeline at 20", "The pipeline at a sixth of the batch is faster than one device (by 49%)", False),
        ("pipeline at its best", "The pipeline at its best split size is faster than one device (by 54%)", False),
    )
    claimed = [(found[name], claim, slower) for name, claim, slower in judged if name in found]
    verdicts = iter(judge([cell.over_single for cell, _, _ in claimed if cell.over_single]))
    lines = [
        _judged(claim, next(verdicts) if cell.over_single else None, slower=slower) for cell, claim, slower in claimed
    ]
    if "pipeline at its best" in found:
        best = found["pipeline at its best"]
        lines.append(
            f"The best split size is {PUBLISHED_BEST_SPLIT} of 120 in the tutorial, and {split_size(best)} of "
            f"{best.spec.global_batch} here."
        )
    return lines


def _judged(claim: str, verdict: Verdict | None, *, slower: bool) -> str:
    """A claim, and whether it holds. None: the two were measured under different conditions."""
    if verdict is None:
        return f"{claim}: not judged, because the two were measured under different conditions."
    time = verdict.ratio.inverse
    amount = f"here it takes {with_interval(time.value, time.interval)} times as long as one device"
    if verdict.outcome == "unknown":
        return f"{claim}: undecided, because one launch shows no order; {amount}."
    if verdict.outcome in ("tie", "unresolved"):
        return f"{claim}: undecided, because the difference is not resolved, or below 1%; {amount}."
    return f"{claim}: {'holds' if (verdict.outcome == 'slower') == slower else 'does not hold'}; {amount}."
