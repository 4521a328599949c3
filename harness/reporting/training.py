"""What `train` found: the accuracy, and the time to reach it.

Time to target is the time of training steps up to the first evaluation that reaches the target. It includes the first
step's compilation, but not the evaluations. Each seed is a training of its own. A seed that never reaches the target
took infinitely long, and is never left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import pandas as pd

from harness.reporting import naming
from harness.reporting.formatting import number
from harness.reporting.result_table import conditions, parity_word
from harness.reporting.summary import Cell
from harness.results.intervals import median_interval
from harness.spec import Epoch, TrialResult

TEXT_COLUMNS = ("workload", "framework", "strategy", "options", "input", "parity", "status")
REPORT_ONLY_COLUMNS = ("first step s", "reporting %", "target %", "samples to target")


def trained(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that `train` made."""
    return [cell for cell in cells if cell.spec.training]


def timed(cells: Sequence[Cell]) -> list[Cell]:
    """The other cells, which `run` made."""
    return [cell for cell in cells if not cell.spec.training]


def to_target(result: TrialResult) -> tuple[float, float]:
    """(seconds, samples) until the target was reached; infinite if it was not."""
    assert result.spec.training is not None
    seconds = 0.0
    for epoch in result.epochs:
        seconds += epoch.seconds
        if epoch.test_accuracy >= result.spec.training.target_accuracy:
            return seconds, epoch.samples
    return math.inf, math.inf


def steady(result: TrialResult) -> list[tuple[Epoch, int]]:
    """The epochs whose speed counts, with their samples: those in which no process started.

    A process compiles in its first epoch, again for a short last batch, and starts its loader's workers.
    """
    return [(e, e.samples - before.samples) for before, e in pairwise(result.epochs) if not e.first_step_seconds]


def throughput(result: TrialResult) -> float | None:
    """Samples per second of the steady epochs; None if there are none."""
    seconds = sum(epoch.seconds for epoch, _ in steady(result))
    return sum(samples for _, samples in steady(result)) / seconds if seconds else None


def share(result: TrialResult, part: str) -> float | None:
    """`part`, such as "wait_seconds", as a share of the training time in steady epochs; None if there are none."""
    seconds = sum(epoch.seconds for epoch, _ in steady(result))
    return sum(getattr(epoch, part) for epoch, _ in steady(result)) / seconds if seconds else None


def resumed_after(result: TrialResult) -> list[int]:
    """The epochs after which another process continued the training."""
    return [epoch.number - 1 for epoch in result.epochs[2:] if epoch.first_step_seconds]


def table(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row per cell, everything as text. A missing value is "-"."""
    several = len({(cell.spec.workload, cell.spec.size) for cell in cells}) > 1
    optional = any(naming.options(cell.spec) for cell in cells)
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
            "framework": naming.framework_title(cell.spec.framework),
            "strategy": cell.spec.strategy,
            **conditions(cell, cells),
            **({"options": naming.options(cell.spec) or "-"} if optional else {}),
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
    """Every epoch of every seed, for epochs.csv: numbers, not rounded."""
    rows = []
    for cell in cells:
        for result in cell.launches:
            named = {"cell": cell.spec.cell, "seed": result.spec.seed}
            rows += [named | {"epoch": epoch.number} | asdict(epoch) for epoch in result.epochs]
    return pd.DataFrame(rows).drop(columns="number", errors="ignore")


def sentences(cells: Sequence[Cell]) -> list[str]:
    """Which cells reached the target, and which trainings were resumed."""
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
            listed = "; ".join(f"{cell.title}, {_reached(cell)} of {len(cell.launches)}" for cell in never)
            line += f". In the other cells, fewer seeds did: {listed}"
        lines.append(line + ".")
        lines += _resumed(tried)
    return lines


def _resumed(cells: Sequence[Cell]) -> list[str]:
    """The trainings that a later process continued."""
    return [
        f"{cell.title}, seed {result.spec.seed}: resumed after epoch {', '.join(map(str, after))}. Its training time "
        "includes compilation in each of its processes."
        for cell in cells
        for result in cell.launches
        if (after := resumed_after(result))
    ]


def loading(cells: Sequence[Cell]) -> pd.DataFrame | None:
    """The step time with each input pipeline, and with resident batches; None if no cell has a loader."""
    rates = {cell.spec.cell: _median([r for r in map(throughput, cell.launches) if r]) for cell in cells}
    rows = []
    for cell in cells:
        training, rate = cell.spec.training, rates[cell.spec.cell]
        base = rates.get(cell.spec.computation)  # the name of the resident cell
        if training and training.input == "loader" and rate:
            row = {"cell": cell.title, "workers": str(training.workers), f"{cell.first.unit}s/s": number(rate)}
            row["waiting %"] = _percent(_shares(cell.launches, "wait_seconds"))
            row["step / resident step"] = f"{base / rate:.2f}" if base else "-"
            rows.append(row)
    return pd.DataFrame(rows) if rows else None


def _target_columns(launches: Sequence[TrialResult]) -> dict[str, str]:
    """Over all seeds; one that failed before it reached the target never did."""
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
        "samples to target": _finite(_median(samples)),
        "to target s": _finite(_median(seconds)),
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
