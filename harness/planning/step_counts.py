"""How many steps the phases of a cell make, where that depends on how many steps a call makes."""

from __future__ import annotations

import math
from typing import Any

from harness.planning.presets import PRESETS
from harness.planning.run_request import Request
from harness.planning.scope import Scope
from harness.workloads import Workload


def parity_steps(least: int, request: Request) -> int:
    """The steps of the parity phase: at least `least`, with at least one whole call.

    The first step is a call of its own. So is the last one before a training that keeps an epoch's short last batch.
    """
    if request.steps_per_call == 1:
        return least
    ends_short = request.training is not None and request.training.last_batch != "drop"
    alone = 2 if ends_short else 1
    return alone + in_whole_calls(max(least - alone, 1), request)


def in_whole_calls(steps: int, request: Request) -> int:
    """The smallest number of steps that is at least `steps` and makes up whole calls."""
    return request.steps_per_call * math.ceil(steps / request.steps_per_call)


def timing_phase(scope: Scope, workload: Workload) -> dict[str, Any]:
    """How long a cell of this preset is timed: fields of TrialSpec."""
    preset = PRESETS[scope.preset]
    names = ("blocks", "steps_per_block", "warmup_seconds", "block_seconds")
    curve = min(preset["curve_steps"], workload.curve_steps)
    return {name: preset[name] for name in names} | {"curve_steps": in_whole_calls(curve, scope.request)}
