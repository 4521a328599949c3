"""Why a trial has no measurement: a kind that programs decide by, with its data. The reason in words is for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

CauseKind = Literal[
    "not_applicable",  # the plan skips the cell
    "no_framework",  # it cannot be imported, or does not see the devices
    "not_begun",  # the session's time was up before
    "cut_short",  # the session's time was up while it ran
    "interrupted",  # by a signal to the harness: {"signal": "SIGINT"}
    "harness_error",  # the harness failed: {"type": "ValueError"}
    "device_lost",  # a GPU does not answer any more
    "host_lost",  # the connection to it has ended, or it is silent: {"host": "node2"}
    "no_reference",  # the golden run could not be computed
    "exception",  # a rank raised one: {"rank": 1, "type": "RuntimeError"}
    "out_of_memory",  # {"rank": 1}
    "too_large",  # not launched: the cell ran out of memory at a smaller batch, {"global_batch": 512}
    # A rank was ended by a signal, {"rank": 1, "signal": "SIGKILL"}, or stopped while it was timed, {..., "SIGSTOP"}.
    "killed",  # without "rank": the supervisor
    "unequal_ranks",  # they ran with different versions, packages or variables
    "no_answer",  # a rank ended without an answer: {"rank": 1, "code": 3}
    "no_progress",  # {"seconds": 300.0}
    "time_limit",  # {"seconds": 600.0}
    "target_met",  # the target of --target-accuracy was met before the first step
    "loss",  # it is not finite, exploded, or left the golden curve
    "gate",  # losses, the first update or parameters are off: {"quantities": ["first update"]}
    "precision",  # products have another precision than the one asked for
]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a trial ended without a measurement."""

    kind: CauseKind
    data: dict[str, Any] = field(default_factory=dict)  # as CauseKind says; plain JSON
