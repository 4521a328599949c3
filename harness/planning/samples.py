"""The samples that cells train on: loaded and checked alike by a plan, which counts them, and by a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from harness import workloads
from harness.datasets import DataError, held_out
from harness.planning.outlook import SamplesOf
from harness.spec import TrialSpec
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.workloads import Workload


def load(workload: Workload, split: Literal["train", "test"], *, data: Path | None) -> Arrays:
    """A workload's samples of one split. `data`: the folder that --data names. Raises UsageError if they are bad."""
    try:
        arrays = workload.load(split, data if workload.takes_data else None)
    except DataError as error:
        raise UsageError(str(error)) from error
    workloads.check_samples(workload, arrays)
    return arrays


def counted(data: Path | None) -> SamplesOf:
    """How many samples a cell trains on. Each workload's are loaded when it is first asked for. Raises UsageError."""

    @cache
    def count(workload: str, size: str, validation_share: float) -> int:
        arrays = load(workloads.get(workload, size), "train", data=data)
        return len(held_out(arrays, share=validation_share)[0]["y"])

    def of(spec: TrialSpec) -> int:
        return count(spec.workload, spec.size, spec.training.validation_share if spec.training else 0.0)

    return of
