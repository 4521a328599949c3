"""The samples of a cell: loaded and checked alike by a plan, which counts them, and by a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from harness import workloads
from harness.datasets import DataError, held_out
from harness.planning.outlook import SamplesOf
from harness.spec import TrialSpec, workload_packages
from harness.spec.arrays import Arrays
from harness.spec.errors import UsageError
from harness.workloads import Workload


def load(workload: Workload, *, validation_share: float | None, data: Path | None) -> dict[str, Arrays]:
    """A workload's samples: "train", and for trainings also "validation" and "test".

    `validation_share`: of the training samples, kept back for validation; None without a training. `data`: the folder
    that --data names. Raises UsageError if it does not hold the samples, or if they cannot be used.
    """
    arrays: dict[str, Arrays] = {}
    for split in ("train",) if validation_share is None else ("train", "test"):
        try:
            arrays[split] = workload.load(split, data if workload.takes_data else None)
            workloads.check_samples(workload, arrays[split])
        except DataError as error:
            raise UsageError(str(error)) from error
        except (UsageError, MemoryError):
            raise
        except Exception as error:  # somebody else's code can raise anything
            if workload_packages.is_ours(workload.name):
                raise
            said = workload_packages.described(error, workload.name)
            raise UsageError(f"{workload.title}: its {split} samples cannot be loaded: {said}") from error
    if validation_share is not None:
        arrays["train"], arrays["validation"] = held_out(arrays["train"], share=validation_share)
    return arrays


def validation_share(spec: TrialSpec) -> float | None:
    """Of the training samples of a cell; None if it does not train to an accuracy."""
    return spec.training.validation_share if spec.training else None


def counter(data: Path | None) -> SamplesOf:
    """Counts the samples that a cell trains on. A workload's are loaded when they are first asked for, and only then.

    What it returns raises UsageError as `load` does.
    """

    @cache
    def count(workload: str, size: str, share: float | None) -> int:
        return len(load(workloads.get(workload, size), validation_share=share, data=data)["train"]["y"])

    return lambda spec: count(spec.workload, spec.size, validation_share(spec))
