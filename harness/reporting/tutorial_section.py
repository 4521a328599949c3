"""The section of a report that follows the five steps of PyTorch's model-parallel tutorial."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import timelines
from harness.reporting.formatting import from_to
from harness.reporting.model import Definition, DefinitionList, List, Node, Section, paragraph
from harness.reporting.summary import Cell
from harness.reporting.tables.tutorial_tables import comparison, hardware
from harness.reporting.tutorial import (
    PROTOCOL_WORDS,
    PROTOCOLS,
    PUBLISHED_REPEATS,
    claims,
    repeats,
    rows,
)
from harness.spec import Hardware

PUBLISHED_HARDWARE = (
    "The tutorial does not name the GPUs behind its published numbers. A course based on it shows two GeForce GTX 1080 "
    "Ti with 11,178 MiB each, driver 430.50 and CUDA 10.1."
)
FROM_HOST = (
    "timed as in the tutorial. Each repeat builds a fresh model, its batches are made on the host inside the timed "
    "part, and the clock stops when the last step has been launched, not when it is done. The first repeat of each "
    "launch is left out, because it loads the libraries; the tutorial's single process paid for that only once."
)
BATCHES_MADE = {
    1: "Version 1 of from_host made the batches with NumPy, where the tutorial calls torch.randn. That took longer, "
    "which pulls all its ratios towards 1.",
    2: "Batches are made by torch.randn, as in the tutorial.",
}
RESIDENT = "batches already on the devices, after a warm-up, timed until the devices are idle."
RATIOS = (
    "Seconds cannot be compared between different hardware. Ratios can, if they were timed alike: the published ones "
    "correspond to from_host. The measured ones are formed within rounds, as those under Results."
)


def section(cells: Sequence[Cell], machine: Hardware, *, on_cpu: bool) -> Section:
    """The five steps, each under its own heading."""
    steps = (
        Section("1. The hardware", (hardware(machine), paragraph(PUBLISHED_HARDWARE))),
        Section("2. A toy network across two devices", (paragraph(toy_sentence(cells)),)),
        Section("3 and 4. One device, model parallel, and pipeline", _times(cells, on_cpu=on_cpu)),
        Section("5. The split size", (paragraph("The sweeps below show both ways of timing."),)),
    )
    return Section("The tutorial, step by step", steps)


def _times(cells: Sequence[Cell], *, on_cpu: bool) -> tuple[Node, ...]:
    """The comparison of times, and which of the tutorial's claims hold."""
    body: list[Node] = [*_method(cells), comparison(cells), paragraph(RATIOS)]
    if on_cpu:
        return (*body, paragraph("None of the tutorial's claims can be judged on virtual CPU devices."))
    for protocol in PROTOCOLS:
        body += [paragraph(f"{PROTOCOL_WORDS[protocol]}:"), List(tuple(claims(cells, protocol)))]
    if why := reasons(cells):
        body += [paragraph("Why:"), List(tuple(why))]
    return tuple(body)


def _method(cells: Sequence[Cell]) -> tuple[Node, ...]:
    """What the times in the table are, and how both protocols take them."""
    counts = [repeats(cell) for protocol in PROTOCOLS for cell in rows(cells, protocol).values()]
    versions = sorted({cell.spec.protocol_version for cell in rows(cells, "from_host").values()})
    times = (
        "The times are seconds for three batches: the mean over launches and its 95% interval. They come from "
        f"{from_to(counts or [0])} repeats; the tutorial's come from {PUBLISHED_REPEATS}."
    )
    from_host = " ".join([FROM_HOST, *(BATCHES_MADE[version] for version in versions)])
    ways = DefinitionList((Definition("from_host", from_host), Definition("resident", RESIDENT)))
    return (paragraph(times), ways)


def toy_sentence(cells: Sequence[Cell]) -> str:
    """How the toy network trained across two devices."""
    toys = [cell for cell in cells if cell.spec.workload == "toy" and cell.spec.strategy == "model_parallel"]
    if not toys or toys[0].status != "ok" or not toys[0].first.losses:
        return "The toy network did not train: " + (toys[0].first.reason if toys else "it was not run") + "."
    result = toys[0].first
    error = max(check.error for check in result.parity.checks) if result.parity else float("nan")
    first, last = result.losses[0], result.losses[-1]
    stages = "a linear layer 10-10, the second a ReLU and a linear layer 10-5"  # in records of earlier versions
    if result.spec.options.get("cut") == "relu":
        stages = "a linear layer 10-10 and a ReLU, the second a linear layer 10-5, as in the tutorial"
    return (
        f"The first device has {stages}. They train for "
        f"{len(result.losses)} SGD steps, each on fresh random targets. The first loss is {first:.4f}, the last "
        f"{last:.4f}. In float64, the training agrees with the golden reference to {error:.0e}."
    )


def reasons(cells: Sequence[Cell]) -> list[str]:
    """Why the pipeline is as fast as it is, from traced steps: what a piece costs, and whether the stages overlap."""
    found = rows(cells, "resident")
    if "model_parallel" not in found or "pipeline at 20" not in found:
        return []
    whole, cut = found["model_parallel"].first.spans, found["pipeline at 20"].first.spans
    if not whole or not cut:
        return []
    count = timelines.micro_batch_count(cut)
    piece = sum(timelines.busy_stages(cut)) / count / sum(timelines.busy_stages(whole))
    cost = (
        f"In a traced step, the stages are busy for {timelines.busy_words(whole)} ms with the batch in one piece "
        f"(model_parallel), and for {timelines.busy_words(cut)} ms with {count} micro-batches. A micro-batch "
        f"takes {piece:.2f} of the time of the whole batch, and has {1 / count:.2f} of its samples."
    )
    ideal = (count - 1) / (count + 1)  # of count + 1 equal ticks in each direction, both stages work in all but two
    forward, backward = (
        timelines.overlap_share([span for span in cut if span.phase == phase]) for phase in ("forward", "backward")
    )
    overlap = (
        f"Both stages are busy in {100 * forward:.0f}% of the forward pass, which one Python thread launches on both "
        f"devices, and in {100 * backward:.0f}% of the backward pass, which autograd launches with one thread per "
        f"device. For equal stages without overhead, both shares would be {100 * ideal:.0f}%."
    )
    if forward < ideal / 2:
        overlap += (
            " A micro-batch is copied to the second device once that device has finished the work in its queue. The "
            "first device could then start on the next micro-batch. If it is idle instead, the host has not launched "
            "that micro-batch yet."
        )
    return [cost, overlap]
