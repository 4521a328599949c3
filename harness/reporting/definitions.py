"""The lists around tables: under which conditions the cells ran, and what each column means."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import descriptions, result_table, training
from harness.reporting.formatting import count, from_to
from harness.reporting.summary import Cell, counted_seconds
from harness.spec import optimizers

Definition = tuple[str, str]


def conditions(cells: Sequence[Cell]) -> list[Definition]:
    """Data, batch, optimizer and precision of all cells."""
    rules = dict.fromkeys(optimizers.words(cell.spec.optimizer) for cell in cells)
    return [
        ("Data", f"{descriptions.data(cells)}."),
        ("Global batch", f"{_batches(cells)}."),
        ("Optimizer", f"{'; '.join(rules)}."),
        ("Precision", f"{descriptions.precisions(cells)}{_without_tf32(cells)}."),
    ]


def _batches(cells: Sequence[Cell]) -> str:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.spec.workload, cell.spec.size), []).append(cell)
    several_sizes = len(groups) > len({workload for workload, _ in groups})
    sizes = ", ".join(
        f"{descriptions.batches(group)} ({' '.join(name[: 1 + several_sizes])})" for name, group in groups.items()
    )
    if any(len({cell.spec.global_batch for cell in group}) > 1 for group in groups.values()):
        return f"{sizes}; it grows with the devices of data-parallel strategies"
    return f"{sizes}, for any number of devices"


def _without_tf32(cells: Sequence[Cell]) -> str:
    """What fp32 means on GPUs, where frameworks have different defaults."""
    on_gpus = any(cell.spec.platform == "gpu" for cell in cells) and descriptions.precisions(cells) == "fp32"
    return ", without TF32 in any framework" if on_gpus else ""


def columns(cells: Sequence[Cell]) -> list[Definition]:
    """One definition per column of the result table that needs one, in the table's order."""
    shown = list(result_table.table(cells).columns)
    known = {
        "track": "tuned: with the settings listed below. Otherwise: how the framework executes steps by default.",
        "training": "whether the cell takes the same steps as a single device.",
        "BatchNorm over": "which samples share BatchNorm statistics.",
        result_table.throughput_column({cell.first.unit for cell in cells}): _throughput(cells),
        "range": _range(cells),
        "speed-up": f"throughput divided by that of single in the same framework{_same_track(cells)}.",
        "step ms": "global batch divided by throughput.",
        "over bare": (
            "step time of the suite divided by that of a minimal hand-written loop over the same model (PyTorch) or "
            "the same compiled step (other frameworks), timed beside it. 1.00 means that the suite's own Python costs "
            "nothing. Median over pairs of blocks."
        ),
        "first step s": (
            "time of the first step. It includes compilation, but not building the model, and is not part of the "
            f"throughput.{_cache(cells)}"
        ),
        "peak MiB": _peak(cells),
        "parity": "worst relative error against the golden reference, in float64.",
        "launches": "successful launches out of all launches.",
    }
    return [*((name, known[name]) for name in shown if name in known), *_from_host(cells), *_other_machines(cells)]


def _throughput(cells: Sequence[Cell]) -> str:
    spec = cells[0].spec
    counted = [result for cell in cells for result in cell.good if result.block_seconds]
    steps = from_to([result.steps_per_block for result in counted]) or str(spec.steps_per_block)
    blocks = from_to([len(counted_seconds(result)) for result in counted]) or str(spec.blocks)
    return (
        f"median over launches. A launch has {_counted(blocks, 'block')} of {_counted(steps, 'step')}; its throughput "
        "is the samples of all blocks divided by their total time. A block takes as long as its slowest rank."
    )


def _from_host(cells: Sequence[Cell]) -> list[Definition]:
    """What the rows with protocol from_host are, if there are any."""
    if not any(cell.spec.protocol == "from_host" for cell in cells):
        return []
    text = (
        "the clock stops when the last step has been launched, and the time includes making the batches on the host. "
        "The result is not a throughput of the devices."
    )
    return [("Rows with protocol=from_host", text)]


def _counted(numbers: str, noun: str) -> str:
    return count(1, noun) if numbers == "1" else f"{numbers} {noun}s"


def _range(cells: Sequence[Cell]) -> str:
    kinds = {cell.spread_of for cell in cells if cell.low is not None}
    if kinds == {"blocks"}:
        return "the lowest and the highest block."
    if kinds == {"blocks", "launches"}:
        return "the lowest and the highest launch, or block where there is only one launch."
    return "the lowest and the highest launch."


def _same_track(cells: Sequence[Cell]) -> str:
    return " on the same track" if any(cell.spec.track == "tuned" for cell in cells) else ""


def _other_machines(cells: Sequence[Cell]) -> list[Definition]:
    """Which speed-ups have a base that was not launched on the same machines, and how much that changes them."""
    mixed = [cell for cell in cells if cell.speedup is not None and not cell.same_machines]
    if not mixed:
        return []
    pairs = [(cell.title, *map(_ratio, (cell.speedup, cell.speedup_same_machines))) for cell in mixed]
    changed = [f"{title}, {same} instead of {shown}" for title, shown, same in pairs if shown != same]
    differ = f"these differ: {'; '.join(changed)}" if changed else "all are the same to two decimals"
    text = (
        f"for {count(len(mixed), 'speed-up')}, the cell and its baseline (single) were not launched on the same "
        f"machines. Counting only launches on machines that ran both, {differ}."
    )
    return [("Speed-ups across machines", text)]


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _cache(cells: Sequence[Cell]) -> str:
    cached = {result.compile_cache for cell in cells for result in cell.launches} & {"cold", "warm"}
    if not cached:
        return ""
    return (
        " Cold: the launch had to compile code and autotune kernels. Warm: everything came from the cache of an "
        "earlier launch."
    )


def _peak(cells: Sequence[Cell]) -> str:
    if {cell.first.peak_kind for cell in cells} - {""} == {"process"}:
        return "peak resident memory of the largest process, on the host."
    return "peak memory of the busiest device."


def training_conditions(cells: Sequence[Cell]) -> list[Definition]:
    """Data, batch and precision of all trainings."""
    spec = cells[0].spec.training
    assert spec is not None
    last = {
        "exact": "holds the samples that are left. Its loss is the mean over these",
        "pad": "is filled up with samples of weight zero. Its loss is the mean over the true samples",
        "drop": "is dropped if it is not full",
    }[spec.last_batch]
    sizes = ", ".join(dict.fromkeys(f"{cell.spec.global_batch} ({cell.spec.workload})" for cell in cells))
    return [
        ("Data", f"{descriptions.data(cells)}. Every cell sees the same samples in the same order."),
        ("Global batch", f"{sizes}. An epoch's last batch {last}."),
        ("Precision", f"{descriptions.precisions(cells)}."),
    ]


def training_columns(cells: Sequence[Cell]) -> list[Definition]:
    """One definition per column of the training table that needs one, in the table's order."""
    known = {
        "accuracy %": "on the test set after the last epoch; median over seeds. Every test sample counts once.",
        "test loss": "after the last epoch; median over seeds.",
        "reached": "seeds that reached the target, out of all that were tried.",
        "samples to target": "samples trained on before the target was reached; median over seeds.",
        "to target s": (
            "time of all training steps up to the first evaluation that reaches the target. It includes compilation in "
            "the first step, but not the evaluations. Median over seeds, each with its own weights and order of "
            "samples; a seed that never reaches the target counts as infinite."
        ),
        "interval": (
            "the median of that time lies in this interval, with the confidence in brackets. The interval is computed "
            "from order statistics, which assume no distribution."
        ),
        f"{cells[0].first.unit}s/s": (
            "median over seeds. Epochs in which a process started do not count, because it compiled then."
        ),
        "waiting %": "share of the training time in which the host waited for the next batch.",
        "first step s": "time of the first step, including compilation; median over seeds.",
        "reporting %": (
            "reporting overhead: time for reading losses and printing progress, relative to the training time, which "
            "does not include it."
        ),
        "parity": "worst relative error against the golden reference, in float64.",
    }
    return [(name, known[name]) for name in training.table(cells).columns if name in known]


def timelines() -> list[Definition]:
    """The columns of the table of traced steps."""
    return [
        (
            "ms, traced (timed)",
            "time from the first forward to the last backward. Tracing changes the step, so the time of a step in "
            "the timed blocks is given in brackets.",
        ),
        (
            "busy ms per stage",
            "time from the first kernel of a micro-batch to its last, including pauses between kernels. A stage's "
            "backward lasts from its output's gradient to its input's; the first stage's input gets a gradient only "
            "to mark this end.",
        ),
        ("overlap", "share of the traced time in which more than one stage is busy."),
        (
            "idle, at least",
            "share of the stages' time that is not busy time. It is a lower bound, because busy times include pauses.",
        ),
        ("bubble by formula", "idle share of equal stages without any overhead."),
    ]
