"""The numbers of the table of trainings, computed again from the record."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

from scipy import stats

from harness.verification.launches import Row
from harness.verification.matching import Columns
from harness.verification.record import Cell
from harness.verification.report_text import Digits, Expected, fixed, rounded, significant
from harness.verification.tables import parity


def epochs(row: Row) -> list[dict[str, Any]]:
    """The epochs of a training. Each clock is the slowest rank's."""
    ranks = [rank["training"]["epochs"] for rank in row["ranks"] if rank.get("training")]
    clocks = ("seconds", "first_step_seconds", "wait_seconds", "report_seconds")
    return [
        {**each[0], **{clock: max(epoch[clock] for epoch in each) for clock in clocks}}
        for each in zip(*ranks, strict=False)
    ]


def to_target(row: Row) -> tuple[float, float]:
    """Seconds and samples until the target was reached; infinite if it was not."""
    seconds = 0.0
    for epoch in epochs(row):
        seconds += epoch["seconds"]
        held_out = epoch.get("validation_accuracy")
        accuracy = epoch["test_accuracy"] if held_out is None else held_out
        if accuracy >= row["spec"]["training"]["target_accuracy"]:
            return seconds, epoch["samples"]
    return math.inf, math.inf


def _steady(row: Row, part: str) -> float | None:
    """A clock of the epochs in which no process started, as a share of their time; or their samples per second."""
    kept = [(e, e["samples"] - before["samples"]) for before, e in pairwise(epochs(row)) if not e["first_step_seconds"]]
    seconds = sum(epoch["seconds"] for epoch, _ in kept)
    counted = sum(samples if part == "samples" else epoch[part] for epoch, samples in kept)
    return counted / seconds if seconds else None


def _median(cell: Cell, value_of: Callable[[Row], float | None]) -> float | None:
    rows = [row for row in cell.good if epochs(row)]
    values = [value for row in rows if (value := value_of(row)) is not None]
    return None if cell.speedless or not values else median(values)


def _last(cell: Cell, name: str, factor: float = 1.0) -> float | None:
    value = _median(cell, lambda row: epochs(row)[-1].get(name))
    return None if value is None else factor * value


def _share(cell: Cell, part: str) -> Expected:
    value = _median(cell, lambda row: _steady(row, part))
    return fixed(None if value is None else 100 * value, 2)


def _targets(cell: Cell, which: int) -> list[float]:
    if cell.speedless or not cell.spec["training"]["epochs"]:  # with --epochs 0 nothing was trained
        return []
    return sorted(to_target(row)[which] for row in cell.launches if row["status"] != "skipped")


def _until(cell: Cell, which: int) -> Expected:
    values = _targets(cell, which)
    return rounded(median(values)) if values else []


def _median_interval(cell: Cell) -> Expected:
    """From order statistics: the k-th lowest and the k-th highest value (Le Boudec 2010, theorem 2.1)."""
    values = _targets(cell, 0)
    count = len(values)
    if count < 2:
        return []
    sure = [k for k in range(2, count // 2 + 1) if 1 - 2 * stats.binom.cdf(k - 1, count, 0.5) >= 0.95]
    best = max(sure, default=1)
    confidence = 100 * (1 - 2 * stats.binom.cdf(best - 1, count, 0.5))
    ends = [digits for value in (values[best - 1], values[-best]) for digits in rounded(value) or ()]
    return [*ends, Digits(float(confidence), 1.0)]


def _reached(cell: Cell) -> Expected:
    values = _targets(cell, 0)
    return [Digits(sum(map(math.isfinite, values)), 1.0), Digits(len(values), 1.0)] if values else []


TRAINING: Columns = {
    "epochs": lambda cell: fixed(
        max((epochs(row)[-1]["number"] for row in cell.launches if epochs(row)), default=None)
    ),
    "accuracy %": lambda cell: fixed(_last(cell, "test_accuracy", 100), 2),
    "validation %": lambda cell: fixed(_last(cell, "validation_accuracy", 100), 2),
    "test loss": lambda cell: rounded(_last(cell, "test_loss")),
    "target %": lambda cell: [significant(100 * cell.spec["training"]["target_accuracy"], 6)],
    "reached": _reached,
    "samples to target": lambda cell: _until(cell, 1),
    "to target s": lambda cell: _until(cell, 0),
    "interval": _median_interval,
    "throughput": lambda cell: rounded(_median(cell, lambda row: _steady(row, "samples") or None)),
    "waiting %": lambda cell: _share(cell, "wait_seconds"),
    "first step s": lambda cell: rounded(_median(cell, _first_step)),
    "reporting %": lambda cell: _share(cell, "report_seconds"),
    "parity": parity,
}


def _first_step(row: Row) -> float:
    return next((each["first_step_seconds"] for each in epochs(row) if each["steps"]), 0.0)
