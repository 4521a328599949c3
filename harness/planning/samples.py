"""The samples of a cell: loaded and checked alike by a plan, which counts them, and by a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from harness import workloads
from harness.datasets import DataError, held_out
from harness.planning.outlook import SamplesOf
from harness.spec import TrainingSpec
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.workloads import Workload


def load(workload: Workload, training: TrainingSpec | None, *, data: Path | None) -> dict[str, Arrays]:
    """A workload's samples: "train", and for trainings also "validation" and "test".

    `data`: the folder that --data names. Raises UsageError if it does not hold them, or if they cannot be used.
    """
    arrays: dict[str, Arrays] = {}
    for split in ("train", "test") if training else ("train",):
        try:
            arrays[split] = workload.load(split, data if workload.takes_data else None)
        except DataError as error:
            raise UsageError(str(error)) from error
        workloads.check_samples(workload, arrays[split])
    if training:
        arrays["train"], arrays["validation"] = held_out(arrays["train"], share=training.validation_share)
    return arrays


def counter(data: Path | None) -> SamplesOf:
    """Counts the samples that a cell trains on. A workload's are loaded when they are first asked for.

    What it returns raises UsageError as `load` does.
    """

    @cache
    def count(workload: str, size: str, training: TrainingSpec | None) -> int:
        return len(load(workloads.get(workload, size), training, data=data)["train"]["y"])

    return lambda spec: count(spec.workload, spec.size, spec.training)
