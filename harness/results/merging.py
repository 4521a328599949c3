"""Several runs in one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.machine.machine_record import other_hardware
from harness.results.condition_rules import differences
from harness.spec import TrialResult
from harness.spec.errors import UsageError


def merge(runs: Sequence[Sequence[TrialResult]]) -> list[TrialResult]:
    """The results of several runs as those of one. The rounds of later runs get numbers behind those of earlier ones:
    launches of different cells in one round keep one number, because ratios are formed within rounds.

    Launches that must not share a row are kept apart later, by harness.results.pooling. Raises UsageError for runs on
    different hardware, for a launch that is in several runs, and for trainings with the same seed.
    """
    for run in runs[1:]:
        if differs := other_hardware(runs[0][0].conditions.hardware, run[0].conditions.hardware):
            raise UsageError(f"the runs are from different machines ({differs}), so their numbers do not compare")
    check_no_launch_twice(runs)
    merged: list[TrialResult] = []
    for run in runs:
        _check_no_seed_twice(run, merged)
        earlier = 1 + max((result.spec.launch for result in merged), default=-1)
        for result in run:
            merged.append(replace(result, spec=replace(result.spec, launch=earlier + result.spec.launch)))
    return merged


def check_no_launch_twice(runs: Sequence[Sequence[TrialResult]]) -> None:
    """Raises UsageError if a launch is in several runs: a copy of a run, or a report of it with others."""
    seen: set[tuple] = set()
    for run in runs:
        measured = [result for result in run if result.block_seconds or result.epochs]
        own = {(r.spec.cell, r.run.started, r.run.session, r.block_seconds, r.epochs) for r in measured}
        if again := seen & own:
            cell, started, *_ = min(again)
            raise UsageError(f"a launch of {cell} from the run of {started} is in several folders; name each run once")
        seen |= own


def _check_no_seed_twice(run: Sequence[TrialResult], merged: Sequence[TrialResult]) -> None:
    """Raises UsageError for a training that repeats one of an earlier run under the same conditions."""
    earlier: dict[tuple[str, int], list[TrialResult]] = {}
    for other in merged:
        earlier.setdefault((other.spec.cell, other.spec.seed), []).append(other)
    for result in run:
        same = earlier.get((result.spec.cell, result.spec.seed), []) if result.spec.training else []
        if any(not differences(result, other, purpose="pool") for other in same):
            raise UsageError(
                f"{result.spec.cell} with seed {result.spec.seed} is in several runs; choose other seeds, or leave a "
                "run out"
            )
