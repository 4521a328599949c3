"""Parity phases side by side: while nothing is timed, several cells may share the devices.

A parity phase mostly starts up and compiles, on a few cores of the host, and its batches are small. Run one after
another, these phases would leave GPUs idle for most of a session or, on a host without GPUs, most of its cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from harness.launch.launcher import Outcome
from harness.spec import Cause, FrameworkSpec, Status, TrialSpec
from harness.spec.workload_packages import ModelDiffers

# A launch that ends like this may have lacked room, so it is tried again alone. A wrong result counts at once.
TRIED_ALONE: tuple[Status, ...] = ("oom", "timeout", "hung", "crashed", "killed", "unavailable")
# Except for these errors: they are mistakes in code, which more room does not mend.
MISTAKES = (
    *("AttributeError", "IndentationError", "NameError", "NotImplementedError", "SyntaxError", "TypeError"),
    *("UnboundLocalError", ModelDiffers.__name__),
)


def may_have_lacked_room(status: Status, cause: Cause | None) -> bool:
    """Whether a launch that ended like this is tried again alone."""
    return status in TRIED_ALONE and not (cause and cause.data.get("type") in MISTAKES)


def may_share(spec: TrialSpec, framework: FrameworkSpec) -> bool:
    """Whether a cell's parity phase may run beside others.

    On CPU devices it may if it is forked from a process that has imported the framework: two that import compete for
    memory and disk. A pipeline that is cut by measured times needs the devices for itself.
    """
    return (spec.platform == "gpu" or (framework.forks and spec.hosts == 1)) and not spec.is_cut_by_time


def side_by_side(
    launch: Callable[[TrialSpec, threading.Event], Outcome],
    specs: Sequence[TrialSpec],
    *,
    at_once: int,
    has_time: Callable[[], bool],
) -> Iterator[tuple[TrialSpec, Outcome]]:
    """Yields each cell with the outcome of its launch, in the order in which launches end.

    Cells are left out if there was no time to start them. On an exception (Ctrl-C), or when the caller stops reading,
    running launches are ended first, through the event that each was given.
    """
    stop = threading.Event()

    def one(spec: TrialSpec) -> Outcome | None:
        return launch(spec, stop) if has_time() and not stop.is_set() else None

    with ThreadPoolExecutor(at_once) as threads:
        try:
            running: dict[Future[Outcome | None], TrialSpec] = {threads.submit(one, spec): spec for spec in specs}
            for future in as_completed(running):
                outcome = future.result()
                if outcome is not None:
                    yield running[future], outcome
        finally:
            stop.set()
