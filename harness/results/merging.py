"""Several runs in one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.machine.machine_record import other_hardware
from harness.spec import TrialResult, TrialSpec
from harness.spec.errors import UsageError


def merge(runs: Sequence[Sequence[TrialResult]]) -> list[TrialResult]:
    """The results of several runs as those of one. Launches of the same cell get consecutive numbers.

    Raises UsageError for runs on different hardware, for a cell whose configuration differs between runs, and for
    trainings with the same seed.
    """
    for run in runs[1:]:
        if differs := other_hardware(runs[0][0].machine, run[0].machine):
            raise UsageError(f"the runs are from different machines ({differs}), so their numbers do not compare")
    _check_configurations(runs)
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


def _check_configurations(runs: Sequence[Sequence[TrialResult]]) -> None:
    """Raises UsageError for a cell that differs between runs in anything but seed and launch."""
    known: dict[str, TrialSpec] = {}
    for result in (result for run in runs for result in run):
        spec = replace(result.spec, seed=0, launch=0)
        if known.setdefault(spec.cell, spec) != spec:
            raise UsageError(f"{spec.cell} differs between the runs, for example in its batch or its optimizer")
