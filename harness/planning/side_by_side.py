"""How many parity phases fit on a host at a time. harness/launch/pool.py runs them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.spec import Platform, TrialSpec

MOST_AT_ONCE = 6
"""So many parity phases run side by side at most."""
CORES_A_GPU = 2  # a rank computes on one core and compiles on others
MEMORY: dict[Platform, int] = {"gpu": 8 * 2**30, "cpu": 2 * 2**30}
"""Bytes of host memory of a device: for a framework and its compiler, and on GPUs for its CUDA libraries."""


def at_once(specs: Sequence[TrialSpec], *, cores: int, memory_bytes: int | None = None) -> int:
    """How many of these parity phases, all on one platform, fit on the host at a time: at least one.

    On CPU devices, as many as there are cores: ranks wait for each other, and their compilers use one core for most of
    the time. `memory_bytes`: of the host; None: enough for all.
    """
    devices = max((spec.devices for spec in specs), default=1)
    platform = specs[0].platform if specs else "cpu"
    limits = [MOST_AT_ONCE, len(specs), cores // (CORES_A_GPU * devices) if platform == "gpu" else cores]
    if memory_bytes is not None:
        limits.append(memory_bytes // (MEMORY[platform] * devices))
    return max(1, min(limits))
