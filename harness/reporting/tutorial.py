"""PyTorch's model-parallel tutorial: its published numbers, the measured ones, and which of its claims hold here."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.summary import Cell
from harness.reporting.sweep import block_steps
from harness.results.comparison import by_mean, overlap

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


def repeats(cell: Cell) -> list[float]:
    """Seconds for three batches, one value per repeat, over all launches."""
    return [BATCHES * seconds for result in cell.good for seconds in block_steps(result)]


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
    """A pipeline's speed-up, and also that on common machines if it did not run on the same machines as its base."""
    alike = pipeline.speedup_same_machines
    note = "" if pipeline.same_machines or alike is None else f"; {alike:.2f} on machines that ran both"
    return f"{pipeline.speedup:.2f} (split_size {split_size(pipeline)}{note})"


def claims(cells: Sequence[Cell], protocol: str) -> list[str]:
    """Which of the tutorial's claims hold on this machine under one protocol."""
    found = rows(cells, protocol)
    if "single" not in found:
        return [f"Without a time of a single device ({protocol}), no claim can be judged."]
    single = found["single"]
    judged = (
        ("model_parallel", "Model parallelism is slower than one device (by 7% in the tutorial)", True),
        ("pipeline at 20", "The pipeline at a sixth of the batch is faster than one device (by 49%)", False),
        ("pipeline at its best", "The pipeline at its best split size is faster than one device (by 54%)", False),
    )
    lines = [_judged(claim, found[name], single, slower=slower) for name, claim, slower in judged if name in found]
    if "pipeline at its best" in found:
        best = found["pipeline at its best"]
        lines.append(
            f"The best split size is {PUBLISHED_BEST_SPLIT} of 120 in the tutorial, and {split_size(best)} of "
            f"{best.spec.global_batch} here."
        )
    return lines


def _judged(claim: str, cell: Cell, single: Cell, *, slower: bool) -> str:
    times, base = by_mean(repeats(cell), of="repeats"), by_mean(repeats(single), of="repeats")
    if cell.speedup is None:
        return f"{claim}: not judged, because the two were measured under different conditions."
    amount = f"here it takes {1 / cell.speedup:.2f} times as long as one device"
    if overlap(times, base):
        return f"{claim}: undecided, because the ranges of the repeats overlap; {amount}."
    return f"{claim}: {'holds' if (cell.speedup < 1) == slower else 'does not hold'}; {amount}."
