"""Which Python runs each framework, and which modules it must have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.planning.run_request import Request, TrainingRequest
from harness.spec import FrameworkSpec, TrainingSpec, registry
from harness.spec.errors import check_name


def check_interpreter_names(interpreters: Iterable[str]) -> None:
    """Raises UsageError for an interpreter of a framework that does not exist."""
    for name in interpreters:
        check_name("--interpreter", name, registry.packages(), extra=" (as NAME=PATH)")


def choose_interpreters(request: Request, frameworks: Sequence[FrameworkSpec]) -> dict[str, str]:
    """The path of the Python for each framework, by name: the requested one or else the default."""
    return {spec.name: request.interpreters.get(spec.name) or registry.default_interpreter(spec) for spec in frameworks}


def modules_for_checkpoints(trainings: Iterable[TrainingSpec | TrainingRequest | None]) -> tuple[str, ...]:
    """The modules that an interpreter needs in addition to its framework's."""
    uses_checkpoints = any(training and (training.save_every or training.init_from) for training in trainings)
    return ("safetensors",) if uses_checkpoints else ()
