"""The model-parallel tutorial's five steps, with what it published beside what was measured, and which claims hold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd

from harness.reporting import timelines
from harness.reporting.escaping import escape, from_to, table
from harness.reporting.summary import Cell
from harness.reporting.sweep import block_steps
from harness.results.intervals import deviation

BATCHES = 3  # a repeat there is three batches
# Seconds for three batches of 120 images of 128 x 128, read off the text of
# https://pytorch.org/tutorials/intermediate/model_parallel_tutorial.html, which names neither its GPUs nor a spread.
PUBLISHED = {"single": 3.75, "model_parallel": 4.02, "pipeline at 20": 2.51, "pipeline at its best": 2.43}
PUBLISHED_BEST_SPLIT = 12
PUBLISHED_HARDWARE = (
    "There: PyTorch's tutorial, whose numbers these are, names no GPUs; a course that retells its five steps shows 2 × "
    "GeForce GTX 1080 Ti, 11,178 MiB each, driver 430.50, CUDA 10.1."
)
PROTOCOLS = ("from_host", "resident")
PROTOCOL_WORDS = {
    "from_host": "Timed as the tutorial does",
    "resident": "Timed with batches already on the devices, after a warm-up",
}
TUTORIAL_NOTE = (
    "Seconds for three batches, mean and standard deviation over repeats: {published} published, {measured} here. "
    "from_host times as the tutorial does: each repeat is a fresh model, its batches are made on the host inside the "
    "timed part, and the clock stops when the last step has been launched, not when it is done. {made} The first "
    "repeat of each launch, which loads the libraries, is left out: the tutorial's one process paid for that once. "
    "resident: batches already on the devices, after a warm-up, timed until the devices are idle. Seconds do not "
    "compare with those of other hardware; ratios may, between times taken alike: those published with from_host. "
    "Each ratio is the quotient of two throughputs in the Results, which are medians over launches."
)
MADE = {
    1: "Version 1 of from_host made the batches with NumPy, where the tutorial calls torch.randn; making them took "
    "longer so, which pulls all its ratios towards 1.",
    2: "Batches are made by torch.randn, as there.",
}
REPEATS = 10  # there


def repeats(cell: Cell) -> list[float]:
    """Seconds of three batches, one value a repeat, of all launches."""
    return [BATCHES * seconds for result in cell.good for seconds in block_steps(result)]


def rows(cells: Sequence[Cell], protocol: str) -> dict[str, Cell]:
    """The tutorial's four settings as measured by one protocol, in its newest version here; a setting that did not run
    is absent.

    The tutorial's split size of 20 is a sixth of its batch; at another size the sixth is what stands for it.
    """
    ran = [
        cell
        for cell in cells
        if cell.spec.workload == "resnet50" and cell.spec.protocol == protocol and cell.throughput is not None
    ]
    newest = max((cell.spec.protocol_version for cell in ran), default=1)
    ran = [cell for cell in ran if cell.spec.protocol_version == newest]
    found = {cell.spec.strategy: cell for cell in ran if cell.spec.strategy in ("single", "model_parallel")}
    pipelines = [cell for cell in ran if cell.spec.strategy == "pipeline"]
    for cell in pipelines:
        if cell.spec.options["split_size"] * 6 == cell.spec.global_batch:
            found["pipeline at 20"] = cell
    if pipelines:
        found["pipeline at its best"] = max(pipelines, key=lambda cell: cell.throughput or 0)
    return found


def comparison(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a setting: published and measured seconds for three batches, and each as a ratio to single."""
    measured = {protocol: rows(cells, protocol) for protocol in PROTOCOLS}
    table = []
    for setting, published in PUBLISHED.items():
        row = {
            "setting": setting,
            "published s": f"{published:.2f}",
            "to single": f"{published / PUBLISHED['single']:.2f}",
        }
        for protocol in PROTOCOLS:
            cell, single = measured[protocol].get(setting), measured[protocol].get("single")
            if cell is None or single is None:
                row |= {f"{protocol} s": "-", f"{protocol}, to single": "-"}
                continue
            times = repeats(cell)
            split = f" (split {cell.spec.options['split_size']})" if "split_size" in cell.spec.options else ""
            row[f"{protocol} s"] = f"{statistics.fmean(times):.3g} ± {deviation(times):.1g}{split}"
            row[f"{protocol}, to single"] = f"{relative_time(cell, single):.2f}"
        table.append(row)
    return pd.DataFrame(table)


def relative_time(cell: Cell, single: Cell) -> float:
    """The time of a step over that of one device, from the throughputs of the Results."""
    assert cell.throughput is not None and single.throughput is not None
    return single.throughput / cell.throughput


def verdict(cells: Sequence[Cell]) -> list[str]:
    """The pipeline's speed beside the published one: first timed as it was there, then with resident batches."""
    sentences = []
    for protocol in PROTOCOLS:
        found = rows(cells, protocol)
        pipelines = [found[name] for name in ("pipeline at 20", "pipeline at its best") if name in found]
        if pipelines and "single" in found:
            sentences.append(f"{PROTOCOL_WORDS[protocol]}, it runs at {' and '.join(map(_speed, pipelines))}.")
    if not sentences:
        return []
    settings = (("pipeline at 20", 20), ("pipeline at its best", PUBLISHED_BEST_SPLIT))
    there = " and ".join(f"{PUBLISHED['single'] / PUBLISHED[name]:.2f} (split_size {at})" for name, at in settings)
    return [f"The tutorial publishes its pipeline at {there} times the speed of one GPU. {' '.join(sentences)}"]


def _speed(pipeline: Cell) -> str:
    """A pipeline's speed over one device's, and over the same machines' where they did not run on the same."""
    alike = pipeline.speedup_same_machines
    note = "" if pipeline.same_machines or alike is None else f", {alike:.2f} on the machines that both ran on"
    return f"{pipeline.speedup:.2f} (split_size {pipeline.spec.options['split_size']}{note})"


def claims(cells: Sequence[Cell], protocol: str) -> list[str]:
    """Which of the tutorial's claims hold on this machine under one protocol, in words."""
    found = rows(cells, protocol)
    if "single" not in found:
        return [f"Without a single-device time ({protocol}) no claim can be judged."]
    single = found["single"]
    lines = []
    if "model_parallel" in found:
        lines.append(
            _faster_or_slower(
                "Model parallelism is slower than one device (7% there)", found["model_parallel"], single, slower=True
            )
        )
    if "pipeline at 20" in found:
        lines.append(
            _faster_or_slower(
                "The pipeline at a sixth of the batch is faster than one device (49% there)",
                found["pipeline at 20"],
                single,
                slower=False,
            )
        )
    if "pipeline at its best" in found:
        best = found["pipeline at its best"]
        lines.append(
            _faster_or_slower(
                "The pipeline at its best split size is faster than one device (54% there)", best, single, slower=False
            )
        )
        split = best.spec.options["split_size"]
        lines.append(
            f"The best split size is {PUBLISHED_BEST_SPLIT} of 120: here it is {split} of {best.spec.global_batch}."
        )
    return lines


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
        f"In a traced step the stages are busy for {timelines.busy_words(whole)} ms with the batch in one piece "
        f"(model_parallel), and for {timelines.busy_words(cut)} ms with {count} pieces: a piece takes {piece:.2f} of "
        f"the time of the whole, with {1 / count:.2f} of its samples."
    )
    ideal = (count - 1) / (count + 1)  # of so many equal ticks each way, in the first and the last one stage works
    forward, backward = (
        timelines.overlap_share([span for span in cut if span.phase == phase]) for phase in ("forward", "backward")
    )
    overlap = (
        f"Both are busy in {100 * forward:.0f}% of the forward pass, which one Python thread launches on both devices, "
        f"and in {100 * backward:.0f}% of the backward pass, which autograd launches by a thread for each; equal "
        f"stages without overhead would be in {100 * ideal:.0f}%."
    )
    if forward < ideal / 2:
        overlap += (
            " A piece is copied to the second device when that has done what was queued there, and then the next one's "
            "forward can begin on the first: where it does not while the second works, it had not been launched."
        )
    return [cost, overlap]


def _faster_or_slower(claim: str, cell: Cell, single: Cell, *, slower: bool) -> str:
    times, base = repeats(cell), repeats(single)
    ratio = relative_time(cell, single)
    separate = min(times) > max(base) or max(times) < min(base)
    amount = f"it takes {ratio:.2f} times as long as one device"
    if not separate:
        return f"{claim}: undecided, the ranges of the repeats overlap ({amount})."
    return f"{claim}: {'holds' if (ratio > 1) == slower else 'does not hold'}, {amount}."


def hardware(machine: dict) -> pd.DataFrame:
    """What nvidia-smi shows."""
    gpus = machine.get("gpus") or []
    listed = [
        {
            "GPU": gpu["token"],
            "name": gpu["name"],
            "memory MiB": f"{gpu['memory_bytes'] / 2**20:,.0f}",
            "driver": machine["driver"],
        }
        for gpu in gpus
    ]
    cpu = {"GPU": "none", "name": machine.get("cpu", ""), "memory MiB": "-", "driver": "-"}
    return pd.DataFrame(listed or [cpu])


def toy_words(cells: Sequence[Cell]) -> str:
    """How the toy network fared across two devices."""
    toys = [cell for cell in cells if cell.spec.workload == "toy" and cell.spec.strategy == "model_parallel"]
    if not toys or toys[0].status != "ok":
        return "The toy network did not train: " + (toys[0].first.reason if toys else "it was not run") + "."
    result = toys[0].first
    error = max(check.error for check in result.parity.checks) if result.parity else float("nan")
    first, last = result.losses[0], result.losses[-1]
    return (
        f"Linear 10-10 on the first device, ReLU and linear 10-5 on the second, {len(result.losses)} steps of SGD on "
        f"random targets, others in each: the first loss is {first:.4f}, the last {last:.4f}; in float64 the training "
        f"equals the golden reference to {error:.0e}."
    )


def sections(cells: Sequence[Cell], machine: dict, *, on_cpu: bool) -> list[str]:
    """The five steps, as lines of Markdown."""
    parts = [
        "## The tutorial, step by step",
        "",
        "### 1. The hardware",
        "",
        table(hardware(machine)),
    ]
    parts += ["", escape(PUBLISHED_HARDWARE), "", "### 2. A toy network across two devices", ""]
    parts += [escape(toy_words(cells)), "", "### 3 and 4. One device, model parallel, and pipeline", ""]
    counts = [len(repeats(cell)) for protocol in PROTOCOLS for cell in rows(cells, protocol).values()]
    versions = {cell.spec.protocol_version for cell in rows(cells, "from_host").values()}
    made = " ".join(MADE[version] for version in sorted(versions))
    note = TUTORIAL_NOTE.format(published=REPEATS, measured=from_to(counts or [0]), made=made)
    parts += [escape(note), "", table(comparison(cells)), ""]
    if on_cpu:
        parts += ["Virtual CPU devices judge none of the tutorial's claims.", ""]
    for protocol in () if on_cpu else PROTOCOLS:
        parts += [f"{PROTOCOL_WORDS[protocol]}:", ""]
        parts += [f"- {escape(line)}" for line in claims(cells, protocol)] + [""]
    if why := [] if on_cpu else reasons(cells):
        parts += ["Why:", "", *(f"- {escape(line)}" for line in why), ""]
    return [*parts, "### 5. The split size", "", "The sweeps below, by both ways of timing."]
