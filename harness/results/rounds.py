"""Ratios of launches that were made in the same round, on the same machine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from harness.results.holds import hold_of
from harness.results.rates import launch_throughput
from harness.spec import TrialResult
from harness.statistics.ratios import Ratio, paired, unpaired


def round_of(result: TrialResult) -> tuple[Hashable, ...]:
    """The round of a launch within a hold: launches that share it were made shortly after each other."""
    return (result.run.started, result.spec.launch, *launched_in(result))


def launched_in(result: TrialResult) -> tuple[str, ...]:
    """The hold of a launch: one uninterrupted use of one machine."""
    return hold_of(result.conditions.hardware)


def speed_ratio(ours: Sequence[TrialResult], theirs: Sequence[TrialResult]) -> Ratio | None:
    """How many times as fast one cell is as another, from timed launches.

    Within rounds if they have a round in common. Else, as for cells of two runs, from all launches of the holds that
    both were launched in. None without such a hold.
    """
    ratio = paired(
        {round_of(result): launch_throughput(result) for result in ours},
        {round_of(result): launch_throughput(result) for result in theirs},
    )
    if ratio is not None:
        return ratio
    both = set(map(launched_in, ours)) & set(map(launched_in, theirs))
    sides = [[launch_throughput(result) for result in side if launched_in(result) in both] for side in (ours, theirs)]
    return unpaired(*sides) if all(sides) else None
