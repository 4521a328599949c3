"""A plan: every trial in the order in which it will run, and the cells that cannot run, with reasons."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.spec import Platform, TrialSpec


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One trial of a plan. `reason` says why the trial will not run; it is empty if the status is "planned"."""

    spec: TrialSpec
    status: Literal["planned", "skipped", "unavailable"] = "planned"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials in the order in which they will run. Trials that will not run come first."""

    trials: tuple[Planned, ...]
    platform: Platform
    preset: str
    interpreters: dict[str, str]
    compile_cache: str = ""  # a folder, "none", or "" for a folder that is deleted when the session ends
    launches: int = 1  # of each cell

    def runnable(self) -> list[TrialSpec]:
        """The trials that will be launched, in order."""
        return [trial.spec for trial in self.trials if trial.status == "planned"]


def interleave(cells: Sequence[Planned], launches: int) -> tuple[Planned, ...]:
    """Each cell that will not run, once; then `launches` rounds of all the others."""
    idle = [cell for cell in cells if cell.status != "planned"]
    runnable = [cell.spec for cell in cells if cell.status == "planned"]
    return (*idle, *rounds(runnable, launches))


def rounds(cells: Sequence[TrialSpec], launches: int) -> list[Planned]:
    """Every cell once per round, each round in its own seeded random order.

    `cells`: the first launch of each cell.
    """
    return [
        # Each launch of a training is a training of its own, with other initial weights and another order of samples.
        Planned(spec=replace(spec, launch=launch, seed=spec.seed + (launch if spec.training else 0)))
        for launch in range(launches)
        for spec in random.Random(f"{cells[0].seed if cells else 0}/{launch}").sample(cells, len(cells))
    ]
