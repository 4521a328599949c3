"""The definition lists before and after the tables: the conditions under which cells ran, and notes on some rows."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting import descriptions, naming
from harness.reporting.formatting import conjunction, number
from harness.reporting.model import Definition, DefinitionList
from harness.reporting.summary import Cell
from harness.spec import optimizers


def conditions(cells: Sequence[Cell]) -> DefinitionList:
    """Data, batch, optimizer and precision of all cells."""
    return DefinitionList(
        (
            Definition("Data", f"{descriptions.data(cells)}.{_resident(cells)}"),
            Definition("Global batch", f"{_batches(cells)}."),
            Definition("Optimizer", f"{_optimizers_by_workload(cells)}."),
            Definition("Precision", f"{descriptions.precisions(cells)}{_without_tf32(cells)}."),
        )
    )


def _resident(cells: Sequence[Cell]) -> str:
    """Whether the input is a part of what is timed."""
    resident = all(cell.spec.protocol == "resident" and not cell.spec.training for cell in cells)
    return " Batches are in the devices' memory before the clock starts: loading them is not timed." if resident else ""


def _batches(cells: Sequence[Cell]) -> str:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.spec.workload, cell.spec.size), []).append(cell)
    titles = naming.workloads([cell.spec for cell in cells])
    sizes = ", ".join(
        f"{descriptions.batches(group)} ({titles[name] or name[0]}{_repeating(group)})"
        for name, group in groups.items()
    )
    fixed = [{c.spec.global_batch for c in group if c.spec.batch_growth == "fixed"} for group in groups.values()]
    if any(len(batches) > 1 for batches in fixed):
        return f"{sizes}, as the commands asked for"
    if any(cell.spec.batch_growth == "per_device" for cell in cells):
        return f"{sizes}; it grows with the devices of data-parallel strategies"
    return f"{sizes}, for any number of devices"


def _repeating(cells: Sequence[Cell]) -> str:
    """What it means that batches are larger than the data, or ""."""
    few = [
        cell for cell in cells if 0 < cell.first.conditions.samples < cell.spec.global_batch and not cell.spec.training
    ]
    if not few:
        return ""
    return f"; batches of more than {number(few[0].first.conditions.samples)} hold samples repeatedly"


def _optimizers_by_workload(cells: Sequence[Cell]) -> str:
    """The update rules; with several of both, each with its workloads."""
    titles = naming.workloads([cell.spec for cell in cells])
    rules: dict[str, dict[str, None]] = {}
    for cell in cells:
        rules.setdefault(optimizers.words(cell.spec.optimizer), {})[titles[cell.spec.workload, cell.spec.size]] = None
    if len(rules) == 1 or len(titles) == 1:
        return "; ".join(rules)
    return "; ".join(f"{rule} for {conjunction(list(names))}" for rule, names in rules.items())


def _without_tf32(cells: Sequence[Cell]) -> str:
    """What fp32 means on GPUs, where frameworks have different defaults."""
    on_gpus = any(cell.spec.platform == "gpu" for cell in cells) and descriptions.precisions(cells) == "fp32"
    return ", without TF32 in any framework" if on_gpus else ""


def from_host_rows(cells: Sequence[Cell]) -> list[Definition]:
    """What the rows with protocol from_host are, if there are any."""
    if not any(cell.spec.protocol == "from_host" for cell in cells):
        return []
    text = (
        "the clock stops when the last step has been launched, and the time includes making the batches on the host. "
        "The result is not a throughput of the devices."
    )
    return [Definition("Rows with protocol=from_host", text)]


def rows_of_several_steps(cells: Sequence[Cell]) -> list[Definition]:
    """What the rows with several steps in a call are, if there are any."""
    counts = sorted({cell.spec.steps_per_call for cell in cells} - {1})
    text = (
        "each call of the framework makes that many steps (Keras: steps_per_execution), in the gate as well as here. "
        "The time of the first step is that of the first call."
    )
    return [Definition(f"Rows with steps_per_call={number}", text) for number in counts]


def speedups_without_base(cells: Sequence[Cell]) -> list[Definition]:
    """Which cells have no speed-up because the single that they would be divided by ran under other conditions."""
    without = [f"{cell.title}: {', '.join(map(str, cell.no_base))}" for cell in cells if cell.no_base]
    if not without:
        return []
    text = (
        "a speed is divided by that of single only if both ran under the same conditions. In brackets are the values "
        f"of the cell and of the nearest single. {'; '.join(without)}."
    )
    return [Definition("Speed-ups without a base", text)]


def rows_apart(cells: Sequence[Cell]) -> list[Definition]:
    """Which launches of a cell are not in one row with the others, because something differed."""
    apart = [f"{cell.named(options=False)}: {', '.join(map(str, cell.apart))}" for cell in cells if cell.apart]
    if not apart:
        return []
    text = (
        "launches of a cell share a row only if nothing differed that can change its speed. In brackets are the values "
        f"of this row and of the cell's first one. {'; '.join(apart)}."
    )
    return [Definition("Launches in rows of their own", text)]


def ratios_of_fewer_rounds(cells: Sequence[Cell]) -> list[Definition]:
    """Which ratios leave out launches, because single was not launched in the same round on the same machine."""
    fewer, unpaired = [], []
    for cell in cells:
        ratio = cell.over_single
        if ratio is not None and not ratio.pairs:
            unpaired.append(cell.title)
        elif ratio is not None and ratio.pairs < len(cell.timed):
            fewer.append(f"{cell.title}, {ratio.pairs} of {len(cell.timed)}")
    text = "a ratio counts rounds in which the cell and its base (single) were launched on the same machine."
    if fewer:
        text += f" Not all rounds count in: {'; '.join(fewer)}."
    if unpaired:
        text += f" Without a common round, launches on the same machine are compared in: {'; '.join(unpaired)}."
    return [Definition("Rounds of the ratios", text)] if fewer or unpaired else []


def _optimizers(cells: Sequence[Cell]) -> str:
    """The update rules; with several, each with its cells."""
    rules: dict[str, list[str]] = {}
    for cell in cells:
        rules.setdefault(optimizers.words(cell.spec.optimizer), []).append(cell.title)
    if len(rules) == 1:
        return next(iter(rules))
    return "; ".join(f"{rule} for {', '.join(dict.fromkeys(titles))}" for rule, titles in rules.items())


def training_conditions(cells: Sequence[Cell]) -> DefinitionList:
    """Data, batch and precision of all trainings."""
    spec = cells[0].spec.training
    assert spec is not None
    last = {
        "exact": "holds the samples that are left. Its loss is the mean over these",
        "pad": "is filled up with samples of weight zero. Its loss is the mean over the true samples",
        "drop": "is dropped if it is not full",
    }[spec.last_batch]
    shares = sorted({cell.spec.training.validation_share for cell in cells if cell.spec.training})
    percent = " or ".join(f"{share:.0%}" for share in shares)
    held_out = f", {percent} of them held out for validation" if any(shares) else ""
    sizes = ", ".join(dict.fromkeys(f"{number(cell.spec.global_batch)} ({cell.spec.workload})" for cell in cells))
    return DefinitionList(
        (
            Definition(
                "Data", f"{descriptions.data(cells)}{held_out}. All cells see the same samples in the same order."
            ),
            Definition("Global batch", f"{sizes}. An epoch's last batch {last}."),
            Definition("Optimizer", f"{_optimizers(cells)}."),
            Definition("Precision", f"{descriptions.precisions(cells)}."),
        )
    )
