"""What a launch ran with, beside its spec, and what a report needs to say about it.

harness/results/condition_rules.py says of each condition what it is for: pooling launches, dividing speeds, or only
to be reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.spec.disturbances import Disturbance
from harness.spec.hardware import Hardware
from harness.spec.link import Link
from harness.spec.tuning import TuningEffort


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """With what and on what a launch ran. None or empty: not recorded, or the launch did not get so far."""

    data: str = ""  # a digest of the samples
    samples: int = 0  # how many there are to train on; 0: not recorded
    code: str = ""  # a digest of the code that the workers ran
    normalization_groups: tuple[int, ...] = ()  # sizes of the groups of samples that share BatchNorm statistics
    cut: str = ""  # the blocks after which the network was cut into stages
    interpreter: str = ""  # of the workers: "CPython 3.12.3 ..."
    versions: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)  # versions of the CUDA libraries that the workers loaded
    lock: str | None = None  # the lock file that all packages of the workers match; "": none; None: not recorded
    packages: str = ""  # a digest of all packages of the workers: packages-<digest>.txt in the run folder lists them
    environment: dict[str, str] = field(default_factory=dict)  # variables of the workers that can change a result
    cores: int = 0  # CPU cores that each process may use
    # how its processes began: "spawn", anew; "fork", from a process that had imported the framework; "": not recorded
    start_method: str = ""
    disturbances: tuple[Disturbance, ...] = ()  # what may have slowed the launch down
    hardware: Hardware = field(default_factory=Hardware)


@dataclass(frozen=True, kw_only=True)
class DescribedSetting:
    """A setting, as the manifest described it."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Described:
    """What manifest and workload said when the launch was made, so that a report never asks those of another version.

    Settings and exceptions are those of the tuned track; rows of the other track have none.
    """

    framework: str = ""  # its title
    execution: str = ""  # how it executes steps
    untuned: str = ""  # what the track "defaults" runs
    settings: tuple[DescribedSetting, ...] = ()
    tuning: TuningEffort | None = None  # how these settings were found; None: not recorded
    tuned: dict[str, Any] = field(default_factory=dict)  # what this strategy sets differently from the others
    tuned_because: str = ""
    tuned_source: str = ""
    without: dict[str, str] = field(default_factory=dict)  # settings that this strategy cannot have, with reasons
    not_offered: dict[str, str] = field(default_factory=dict)  # techniques that the framework lacks, with reasons
    samples: str = ""  # the training data, in words
    normalizes: bool = False  # whether the network has BatchNorm


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The run and the session in which a row was written."""

    command: str = ""
    recipe: str = ""
    started: str = ""  # identifies the run, which may be measured in several sessions
    session: str = ""  # when the session began
    device_guard: str = ""  # of the session: "refuse", "warn" or "off"; "": not recorded
    telemetry: str = ""  # of the run: "on" or "off"; "": not recorded
    preset: str = ""
    planned: int = 0  # trials
    version: str = ""  # of the suite
    commit: str = ""
    variables: str = ""  # the user's own that reach workers and can change a result, as in a shell
    links: tuple[Link, ...] = ()  # between the hosts of the session; (): it had one

    @property
    def has_variables_recorded(self) -> bool:
        """Whether no `variables` means that there were none. Version 1 recorded neither them nor the guard."""
        return bool(self.variables or self.device_guard)
