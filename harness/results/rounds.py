"""Ratios of launches that were made in the same round, on the same machine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from harness.results.condition_rules import PLACES
from harness.results.holds import hold_of
from harness.results.rates import launch_throughput
from harness.spec import TrialResult
from harness.statistics.ratios import Ratio, paired, unpaired

Launches = Sequence[TrialResult]


def round_of(result: TrialResult) -> tuple[Hashable, ...]:
    """The round of a launch within a hold: launches that share it were made shortly after each other."""
    return (result.run.started, result.spec.launch, *launched_in(result))


def launched_in(result: TrialResult) -> tuple[str, ...]:
    """The hold of a launch: one uninterrupted use of one machine."""
    return hold_of(result.conditions.hardware)


def visible_gpus(result: TrialResult) -> str:
    """The GPUs that a launch saw, as CUDA_VISIBLE_DEVICES names them; "" on CPU devices, and if none were recorded."""
    return " ".join(text for name in PLACES if (text := result.conditions.environment.get(name)))


def placed_in(result: TrialResult) -> tuple[Hashable, ...]:
    """The GPUs of a launch within its hold."""
    return (visible_gpus(result), *launched_in(result))


def comparable(ours: Launches, theirs: Launches) -> tuple[Launches, Launches]:
    """The launches of two cells whose speeds may be divided: those of rounds that both have; else, as for cells of two
    runs, those on the same GPUs in holds that both have; else all those of such holds; else none."""
    for key in (round_of, placed_in, launched_in):
        if both := set(map(key, ours)) & set(map(key, theirs)):
            return [each for each in ours if key(each) in both], [each for each in theirs if key(each) in both]
    return (), ()


def speed_ratio(ours: Launches, theirs: Launches) -> Ratio | None:
    """How many times as fast one cell is as another, from timed launches: within rounds, or from all launches of common
    holds, see `comparable`. None without either."""
    ours, theirs = comparable(ours, theirs)
    if not ours:
        return None
    within = paired(
        {round_of(result): launch_throughput(result) for result in ours},
        {round_of(result): launch_throughput(result) for result in theirs},
    )
    return within or unpaired(*([launch_throughput(result) for result in side] for side in (ours, theirs)))
