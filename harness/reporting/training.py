"""What `train` found: accuracy, and what it took to get there. All arithmetic of that part of the report is here.

Time to target is the time of training steps up to the first evaluation that reaches the target, the first step's
compilation included, evaluation not. Each seed is a training of its own; one that never gets there took infinitely
long, and is never left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import pandas as pd

from harness.reporting.summary import (
    Cell,
    conditions,
    data_words,
    framework_title,
    number,
    options_text,
    parity_word,
    precisions,
)
from harness.results.intervals import median_interval
from harness.spec import Epoch, TrialResult

TEXT_COLUMNS = ("workload", "framework", "strategy", "options", "input", "parity", "status")
REPORT_ONLY_COLUMNS = ("first step s", "reporting %", "target %", "samples to it")


def trained(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of `train` among them."""
    return [cell for cell in cells if cell.spec.training]


def timed(cells: Sequence[Cell]) -> list[Cell]:
    """The others: those of `run`."""
    return [cell for cell in cells if not cell.spec.training]


def to_target(result: TrialResult) -> tuple[float, float]:
    """(seconds, samples) until the target was reached; infinite where it was not."""
    assert result.spec.training is not None
    seconds = 0.0
    for epoch in result.epochs:
        seconds += epoch.seconds
        if epoch.test_accuracy >= result.spec.training.target_accuracy:
            return seconds, epoch.samples
    return math.inf, math.inf


def steady(result: TrialResult) -> list[tuple[Epoch, int]]:
    """The epochs whose speed counts, with their samples: those in which no process has begun, for it compiles then,
    not only in its first step but once more for a short last batch, and its loader's workers start."""
    return [(e, e.samples - before.samples) for before, e in pairwise(result.epochs) if not e.first_step_seconds]


def throughput(result: TrialResult) -> float | None:
    """Samples per second of the steady epochs, None without any."""
    seconds = sum(epoch.seconds for epoch, _ in steady(result))
    return sum(samples for _, samples in steady(result)) / seconds if seconds else None


def share(result: TrialResult, part: str) -> float | None:
    """What part of the steady epochs' training time `part` is, e.g. "wait_seconds"; None without any."""
    seconds = sum(epoch.seconds for epoch, _ in steady(result))
    return sum(getattr(epoch, part) for epoch, _ in steady(result)) / seconds if seconds else None


def resumed_after(result: TrialResult) -> list[int]:
    """After which epochs a later process went on."""
    return [epoch.number - 1 for epoch in result.epochs[2:] if epoch.first_step_seconds]


def table(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a cell, everything as text; "-" where there is no value."""
    several = len({(cell.spec.workload, cell.spec.size) for cell in cells}) > 1
    optional = any(options_text(cell.spec) for cell in cells)
    loads = any(cell.spec.training and cell.spec.training.input == "loader" for cell in cells)
    rows = []
    for cell in cells:
        training = cell.spec.training
        assert training is not None
        seen = [result for result in cell.launches if result.epochs]
        good = [result for result in seen if result.status == "ok"]
        rates = [rate for rate in map(throughput, good) if rate]
        row = {"workload": f"{cell.spec.workload} {cell.spec.size}"} if several else {}
        row |= {
            "framework": framework_title(cell.spec.framework),
            "strategy": cell.spec.strategy,
            **conditions(cell, cells),
            **({"options": options_text(cell.spec) or "-"} if optional else {}),
            "devices": str(cell.spec.devices),
            **({"input": _input(cell)} if loads else {}),
            "epochs": str(max((result.epochs[-1].number for result in seen), default="-")),
            "accuracy %": _percent([result.epochs[-1].test_accuracy for result in good]),
            "test loss": number(_median([result.epochs[-1].test_loss for result in good])),
            **_target_columns(cell.launches),
            f"{cell.first.unit}s/s": number(_median(rates)),
            **({"waiting %": _percent(_shares(good, "wait_seconds"))} if loads else {}),
            "first step s": number(_median([result.first_step_seconds or 0.0 for result in good])),
            "reporting %": _percent(_shares(good, "report_seconds")),
            "parity": parity_word(cell.first),
            "status": cell.status,
        }
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def epochs(cells: Sequence[Cell]) -> pd.DataFrame:
    """Every epoch of every seed, as epochs.csv has it: numbers, unrounded."""
    rows = []
    for cell in cells:
        for result in cell.launches:
            named = {"cell": cell.spec.cell, "seed": result.spec.seed}
            rows += [named | {"epoch": epoch.number} | asdict(epoch) for epoch in result.epochs]
    return pd.DataFrame(rows).drop(columns="number", errors="ignore")


def words(cells: Sequence[Cell]) -> list[str]:
    """What the trainings showed, in sentences."""
    lines = []
    for workload in dict.fromkeys((cell.spec.workload, cell.spec.size) for cell in cells):
        group = [cell for cell in cells if (cell.spec.workload, cell.spec.size) == workload]
        tried = [cell for cell in group if cell.status != "skipped"]
        if not tried or not (training := tried[0].spec.training):
            continue
        target = f"{100 * training.target_accuracy:g}%"
        never = [cell for cell in tried if any(math.isinf(to_target(result)[0]) for result in cell.launches)]
        line = f"{workload[0]} ({workload[1]}): {len(tried) - len(never)} of {len(tried)} cells reached a test "
        line += f"accuracy of {target} with every seed"
        if never:
            told = ", ".join(f"{cell.title} ({_reached(cell)} of {len(cell.launches)})" for cell in never)
            line += f"; not with every one: {told}"
        lines.append(line + ".")
        for cell in tried:
            for result in cell.launches:
                if after := resumed_after(result):
                    lines.append(
                        f"{cell.title}, seed {result.spec.seed}, was resumed after epoch {', '.join(map(str, after))}: "
                        "its seconds hold the compilation of every process that went on."
                    )
    return lines


def reading(cells: Sequence[Cell]) -> list[str]:
    """How the table is to be read."""
    training = cells[0].spec.training
    assert training is not None
    last = {
        "exact": "An epoch's last batch holds what is left; its mean is over its true samples.",
        "pad": "An epoch's last batch is filled up with samples of weight zero; its mean is over its true samples.",
        "drop": "What is left at the end of an epoch and makes no whole batch is dropped.",
    }[training.last_batch]
    sizes = ", ".join(dict.fromkeys(f"{cell.spec.global_batch} ({cell.spec.workload})" for cell in cells))
    return [
        f"Data: {data_words(cells)}. Global batch {sizes}, {precisions(cells)}. "
        "Seconds to it: the time of all training steps up to the first evaluation that reaches the target, "
        "compilation in the first step included, evaluation not; the "
        "median over seeds, each with weights and an order of its own, and the interval in which the median lies with "
        "the confidence given, by order statistics, which assume no distribution; a seed that never gets there counts "
        "as infinite. Accuracy and test loss: of the last epoch, the median over seeds, every test sample counted "
        "once. Throughput: without epochs in which a process begins, for it compiles then. Waiting: the share of "
        "training time in which the host waited for the next batch. Reporting: the time for reading losses and for "
        f"progress messages, as a share of the training time, of which it is not part. {last} The same samples in the "
        "same order in every cell."
    ]


def loading(cells: Sequence[Cell]) -> pd.DataFrame | None:
    """What each input pipeline costs: its step beside that of resident batches; None where there is no pair."""
    rates = {cell.spec.cell: _median([r for r in map(throughput, cell.launches) if r]) for cell in cells}
    rows = []
    for cell in cells:
        training, rate = cell.spec.training, rates[cell.spec.cell]
        base = rates.get(cell.spec.computation)  # the resident cell is named as what it computes
        if training and training.input == "loader" and rate:
            row = {"cell": cell.title, "workers": str(training.workers), f"{cell.first.unit}s/s": number(rate)}
            row["waiting %"] = _percent(_shares(cell.launches, "wait_seconds"))
            row["step, resident = 1"] = f"{base / rate:.2f}" if base else "-"
            rows.append(row)
    return pd.DataFrame(rows) if rows else None


def _target_columns(launches: Sequence[TrialResult]) -> dict[str, str]:
    """Of all seeds: one that failed before it got there never did."""
    tried = [result for result in launches if result.status != "skipped"]
    seconds = [to_target(result)[0] for result in tried]
    samples = [to_target(result)[1] for result in tried]
    interval = median_interval(seconds)
    training = launches[0].spec.training
    reached = sum(math.isfinite(value) for value in seconds)
    between = "-"
    if interval:
        between = f"{_finite(interval.low)} – {_finite(interval.high)} ({100 * interval.confidence:.0f}%)"
    return {
        "target %": f"{100 * training.target_accuracy:g}" if training else "-",
        "reached": f"{reached}/{len(tried)}" if tried else "-",
        "samples to it": _finite(_median(samples)),
        "seconds to it": _finite(_median(seconds)),
        "interval": between,
    }


def _finite(value: float | None) -> str:
    return "never" if value == math.inf else number(value)


def _reached(cell: Cell) -> int:
    return sum(math.isfinite(to_target(result)[0]) for result in cell.launches)


def _shares(results: Sequence[TrialResult], part: str) -> list[float]:
    return [found for result in results if (found := share(result, part)) is not None]


def _input(cell: Cell) -> str:
    training = cell.spec.training
    assert training is not None
    return "resident" if training.input == "resident" else f"loader, {training.workers} workers"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _percent(values: Sequence[float]) -> str:
    return f"{100 * statistics.median(values):.2f}" if values else "-"
