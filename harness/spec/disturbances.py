"""What may have slowed a launch down: other processes on its devices, lowered clocks, and errors of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.spec.hardware import Gpu

DisturbanceKind = Literal[
    "session",  # another run of the suite holds the device
    "compute",  # a process computes on the GPU
    "graphics",  # a process draws with the GPU
    "memory",  # memory of the GPU is in use, but its user cannot be seen from here, as in a container
    "throttled",  # the clocks were lowered by heat or a lack of power
    "ecc",  # the GPU's memory had an error that could not be corrected
    "xid",  # the driver reported a critical error of the GPU
]


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that was seen on one device of a launch while it ran, or right before or after."""

    kind: DisturbanceKind
    device: str  # the UUID of a GPU, or "cpu"
    pid: int = 0  # 0: it belongs to no process, or to one that cannot be seen
    name: str = ""  # of the process; "" if it cannot be read
    memory_bytes: int | None = None  # that it uses on the device; None: unknown
    xid: int = 0  # the number of an error that the driver reported


def in_words(found: Disturbance, gpus: Sequence[Gpu]) -> str:
    """A disturbance as a person reads it: "process 4711 (python) with 3.2 GiB on GPU 0"."""
    tokens = {gpu.uuid: f"GPU {gpu.token}" for gpu in gpus}
    device = "the CPU devices" if found.device == "cpu" else tokens.get(found.device, found.device)
    name = f" ({found.name})" if found.name else ""
    tenths = None if found.memory_bytes is None else found.memory_bytes * 10 // 2**30  # of a GiB
    memory = "" if tenths is None else f" with {tenths // 10}.{tenths % 10} GiB"
    return {
        "session": f"another run, process {found.pid}{name}, on {device}",
        "compute": f"process {found.pid}{name}{memory} on {device}",
        "graphics": f"process {found.pid}{name}{memory}, which draws with {device}",
        "memory": f"a process that cannot be seen from here{memory} on {device}",
        "throttled": f"the clocks of {device} were lowered by heat or a lack of power",
        "ecc": f"the memory of {device} had an error that could not be corrected",
        "xid": f"the driver reported an error of {device}: Xid {found.xid}",
    }[found.kind]
