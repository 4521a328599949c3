"""A plan: every trial in the order in which it will run, and the cells that cannot run, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.spec import Platform, TrialSpec

LOCAL = "local"
"""The launcher of this machine."""


@dataclass(frozen=True, kw_only=True)
class HostsRequest:
    """On which hosts a run measures. No hosts: on this machine."""

    launcher: str = LOCAL
    hosts: tuple[str, ...] = ()  # names; "": one that the launcher chooses when the run begins
    head: str = ""  # HOST or HOST:PORT where the hosts reach the harness; "": the first host, at any port


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
    where: HostsRequest = HostsRequest()

    def runnable(self) -> list[TrialSpec]:
        """The trials that will be launched, in order."""
        return [trial.spec for trial in self.trials if trial.status == "planned"]

    def most_devices(self) -> int:
        """The most devices of one host that a cell uses, if only after --resume: its framework may be missing now. All
        sessions of a run divide cores by it, and launches take turns on so many GPUs."""
        wanted = (trial.spec for trial in self.trials if trial.status in ("planned", "unavailable"))
        return max((spec.devices // spec.hosts for spec in wanted), default=1)


def first_of_each_computation(trials: Sequence[TrialSpec]) -> list[TrialSpec]:
    """The trials to prove: the launches of a cell share one proof."""
    first: dict[str, TrialSpec] = {}
    for spec in trials:
        first.setdefault(spec.computation, spec)
    return list(first.values())


def cache_folder(value: str) -> Path:
    """The folder that --compile-cache names, the same one however its path is written."""
    return Path(value).expanduser().resolve()
