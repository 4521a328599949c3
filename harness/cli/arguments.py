"""The flags that commands share. They are the fields of the requests in harness/planning/run_request.py.

cyclopts fills the classes here. They add to the requests what only the command line needs: the names of flags that
differ from the names of their fields, and how to read NAME=VALUE texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from cyclopts import Parameter

from harness.cli.argument_values import as_interpreters, as_options, as_settings, mapping
from harness.planning.run_request import LaunchRequest, Request, RunRequest, TrainingRequest

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


Interpreters = Annotated[Mapping[str, str], mapping(as_interpreters)]
Settings = Annotated[Mapping[str, str], mapping(as_settings)]
Options = Annotated[Mapping[str, tuple[str, ...]], mapping(as_options)]

FLATTENED = Parameter(name="*", name_transform=flag_of)


@FLATTENED
@dataclass(frozen=True, kw_only=True)
class LaunchArguments(LaunchRequest):
    """The flags of `reproduce`."""

    interpreters: Interpreters = field(default_factory=dict)


@FLATTENED
@dataclass(frozen=True, kw_only=True)
class RunArguments(LaunchArguments, RunRequest):
    """The flags of `run`, `train`, `sweep` and `plan`."""

    settings: Settings = field(default_factory=dict)
    options: Options = field(default_factory=dict)


@FLATTENED
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


def _as_text(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_as_text(item)}" for name, item in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
