"""What one launch says, a row of results.jsonl: seconds of its blocks, its throughput, where it ran."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

Row = Mapping[str, Any]
FEWEST_DEGREES = 2  # of freedom, that a reported interval has: those of three launches


@dataclass(frozen=True)
class Estimate:
    """A positive number with its 95% interval, by Student's t on the logarithmic scale.

    `error`: the standard error of the logarithm. `deviation`: of one logarithm. `degrees`: of freedom; 0: no interval.
    """

    value: float
    error: float = 0.0
    degrees: float = 0.0
    deviation: float = 0.0
    pairs: int = 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None for a single launch."""
        if not self.degrees:
            return None
        half = stats.t.ppf(0.975, self.degrees) * self.error
        with np.errstate(over="ignore"):
            return float(self.value * np.exp(-half)), float(self.value * np.exp(half))

    @property
    def p(self) -> float:
        """The p-value of the hypothesis that the number is 1."""
        if not self.degrees:
            return 1.0
        if not self.error:
            return float(self.value == 1)
        return float(2 * stats.t.sf(abs(math.log(self.value)) / self.error, self.degrees))

    @property
    def inverse(self) -> Estimate:
        """Of one divided by the number."""
        return replace(self, value=1 / self.value)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The number alone, or with both ends of its interval, as they are reported."""
        ends = self.interval if self.degrees >= FEWEST_DEGREES else None
        return (self.value, *(ends or ()))


def estimate(values: Sequence[float]) -> Estimate:
    """The geometric mean of independent values."""
    logs = np.log(values)
    spread = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
    return Estimate(math.exp(logs.mean()), spread / math.sqrt(len(logs)), len(logs) - 1, spread, len(logs))


def blocks(row: Row, name: str = "block_seconds") -> list[float]:
    """Seconds of each block of a launch, on its slowest rank."""
    return [max(block) for block in zip(*(each[name] for each in timings(row) if each.get(name)), strict=True)]


def counted(row: Row) -> list[float]:
    """Seconds of the blocks that count: under from_host, all but the first."""
    found = blocks(row)
    return found[1:] if row["spec"]["protocol"] == "from_host" and len(found) > 1 else found


def timings(row: Row) -> list[Row]:
    """The timing phase of each rank."""
    return [rank["timing"] for rank in row["ranks"] if rank.get("timing")]


def steps(row: Row) -> int:
    """Steps of each block of a launch. Another launch of the same cell can have another number."""
    return timings(row)[0]["steps_per_block"]


def throughput(row: Row) -> float:
    """Samples per second of a launch: all its steps divided by all its time."""
    seconds = counted(row)
    return row["spec"]["global_batch"] * steps(row) * len(seconds) / sum(seconds)


def hold(row: Row) -> tuple[Any, ...]:
    """One uninterrupted use of one machine."""
    machine = row["conditions"].get("hardware", {})
    return (machine.get("boot"), *(gpu.get("uuid", "") for gpu in machine.get("gpus", ())))
