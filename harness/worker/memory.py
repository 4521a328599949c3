"""The most memory that a worker has needed."""

from __future__ import annotations

import resource
from typing import Any

from harness.contract import World
from harness.worker.draft import Draft


def note_peak(runtime: Any, world: World, draft: Draft) -> None:
    """Note the peak until now: of tensors on a device, or of the whole process where there is no device's count.

    A forked process has less: what it has not touched of its libraries does not count.
    """
    peak = runtime.peak_bytes(world)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    draft.note(peak_bytes=resident if peak is None else peak, peak_kind="process" if peak is None else "device")
