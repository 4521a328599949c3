"""Holds: uninterrupted uses of one machine. Only launches of one round in one hold are compared pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.planning.plan import Plan
from harness.spec import Hardware, Status, TrialResult

Trial = tuple[str, int]  # a cell and the number of a launch
NOT_TRIED: tuple[Status, ...] = ("pending", "killed")  # in rows of trials that were not launched, or cut short


def hold_of(hardware: Hardware) -> tuple[str, ...]:
    """What identifies a hold: the boot of the machine, and the numbers of its GPUs."""
    return (hardware.boot, *hardware.uuids)


@dataclass(frozen=True, kw_only=True)
class SetAside:
    """Rows that no longer count. `rows`: those that are set aside now. `counts`: how many rows of each trial are set
    aside, now or in earlier sessions; without the trials that have none."""

    rows: tuple[TrialResult, ...] = ()
    counts: dict[Trial, int] = field(default_factory=dict)

    @property
    def trials(self) -> set[Trial]:
        """The trials of which a row is set aside now."""
        return {(row.spec.cell, row.spec.launch) for row in self.rows}


def set_aside(plan: Plan, rows: Sequence[TrialResult], here: Hardware) -> SetAside:
    """What a run that goes on in another hold must measure anew: each round that was begun, but not completed.

    `rows`: the last one of each trial. `here`: the machine of this session. A run with one launch of each cell has no
    rounds to compare, and a training is no part of one.
    """
    last = {(row.spec.cell, row.spec.launch): row for row in rows}
    again: dict[Trial, TrialResult] = {}
    if plan.launches > 1:
        timed = {(spec.cell, spec.launch) for spec in plan.runnable() if spec.training is None}
        left = {trial[1] for trial in timed if _is_left(last.get(trial))}
        again = {trial: last[trial] for trial in timed & last.keys() if trial[1] in left}
        again = {trial: row for trial, row in again.items() if _was_elsewhere(row, here)}
    counts = {trial: row.set_aside + (trial in again) for trial, row in last.items()}
    counts = {trial: count for trial, count in counts.items() if count}
    return SetAside(rows=tuple(again.values()), counts=counts)


def _is_left(row: TrialResult | None) -> bool:
    """Whether a trial has not had its launch: one that failed by itself has had it, though it is tried again."""
    return row is None or (row.status in NOT_TRIED and (row.wall_seconds is None or row.status == "pending"))


def _was_elsewhere(row: TrialResult, here: Hardware) -> bool:
    """Whether a row is of a launch in another hold."""
    if row.wall_seconds is None and not row.ranks:
        return False
    return row.status != "pending" and hold_of(row.conditions.hardware) != hold_of(here)
