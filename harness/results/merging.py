"""Several runs in one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.machine.machine_record import other_hardware
from harness.spec import TrialResult
from harness.spec.errors import UsageError


def merge(runs: Sequence[Sequence[TrialResult]]) -> list[TrialResult]:
    """The results of several runs as those of one. Launches of the same cell get consecutive numbers.

    Launches that must not share a row are kept apart later, by harness.results.pooling. Raises UsageError for runs on
    different hardware, and for trainings with the same seed.
    """
    for run in runs[1:]:
        if differs := other_hardware(runs[0][0].conditions.hardware, run[0].conditions.hardware):
            raise UsageError(f"the runs are from different machines ({differs}), so their numbers do not compare")
    merged: list[TrialResult] = []
    seeds: set[tuple[str, int]] = set()
    for run in runs:
        again = seeds & {(result.spec.cell, result.spec.seed) for result in run if result.spec.training}
        if again:
            cell, seed = min(again)
            raise UsageError(f"{cell} with seed {seed} is in several runs; choose other seeds, or leave a run out")
        seeds |= {(result.spec.cell, result.spec.seed) for result in run}
        first: dict[str, int] = {}
        for result in merged:
            first[result.spec.cell] = max(first.get(result.spec.cell, 0), result.spec.launch + 1)
        for result in run:
            launch = result.spec.launch + first.get(result.spec.cell, 0)
            merged.append(replace(result, spec=replace(result.spec, launch=launch)))
    return merged
