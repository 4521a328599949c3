"""Parity phases side by side: while nothing is timed, several cells may share the GPUs.

Most of a parity phase is start-up and compilation, on a few cores of the host, and its batches are small; one after
another they would leave the GPUs idle for most of a session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from harness.launch.local import Outcome
from harness.spec import Status, TrialSpec

MOST_AT_ONCE = 6
CORES_A_DEVICE = 2  # of one cell: a rank computes on one and compiles on others
MEMORY_A_DEVICE = 8 * 2**30  # of the host, in bytes: a framework with its CUDA libraries, and what it compiles with
# How a launch may end for want of room. A wrong result is none of these: it counts, whatever was beside it.
TRIED_ALONE: tuple[Status, ...] = ("oom", "timeout", "hung", "crashed", "killed", "unavailable")


def may_share(spec: TrialSpec) -> bool:
    """Whether a cell's parity phase may run beside others: on CPU the devices are the cores, and a pipeline that is cut
    by measured times must have the devices for itself."""
    return spec.platform == "gpu" and spec.options.get("cut") != "time"


def at_once(specs: Sequence[TrialSpec], *, cores: int, memory_bytes: int) -> int:
    """How many of these parity phases the host has room for at a time, at least one."""
    devices = max((spec.devices for spec in specs), default=1)
    room = min(cores // (CORES_A_DEVICE * devices), memory_bytes // (MEMORY_A_DEVICE * devices))
    return max(1, min(MOST_AT_ONCE, len(specs), room))


def side_by_side(
    launch: Callable[[TrialSpec, threading.Event], Outcome],
    specs: Sequence[TrialSpec],
    *,
    at_once: int,
    has_time: Callable[[], bool],
) -> Iterator[tuple[TrialSpec, Outcome]]:
    """Each cell and how its launch ended, as they end; without those that there was no time to begin.

    On an exception (Ctrl-C), or when the caller stops reading, launches under way are ended first, through the event
    that each was given.
    """
    stop = threading.Event()

    def one(spec: TrialSpec) -> Outcome | None:
        return launch(spec, stop) if has_time() and not stop.is_set() else None

    with ThreadPoolExecutor(at_once) as threads:
        try:
            under_way: dict[Future[Outcome | None], TrialSpec] = {threads.submit(one, spec): spec for spec in specs}
            for future in as_completed(under_way):
                outcome = future.result()
                if outcome is not None:
                    yield under_way[future], outcome
        finally:
            stop.set()
