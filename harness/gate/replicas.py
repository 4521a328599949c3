"""Do the weights that a program exports lie on its devices?

What `export` returns is only the program's claim: it may broadcast rank 0's weights before it answers, though rank 1
was never updated. So what it exports is compared with the parameters as they lie on every device of the same process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.contract import Held
from harness.spec import Check
from harness.spec.arrays import Arrays
from harness.spec.checks import finding


def exported_as_held(exported: Sequence[Arrays], held: Sequence[Held], *, shapes: Mapping[str, tuple]) -> Check:
    """Whether each exported replica is what the devices hold, bit for bit.

    A process exports a replica for each of its devices, or one for all. Together its devices must then have everything
    that it exported, unless the process has a part of the parameters only. `shapes`: of all parameters.
    """
    return finding("exported parameters", _wrong(exported, held, shapes))


def _wrong(exported: Sequence[Arrays], held: Sequence[Held], shapes: Mapping[str, tuple]) -> str:
    if len(exported) not in (1, len(held)) and held:
        return f"{len(exported)} replicas were exported, and {len(held)} devices hold parameters"
    for index, own in enumerate(held):
        replica = exported[index if len(exported) == len(held) else 0]
        for name, array in own.arrays.items():
            if name not in shapes:
                return f"{name} on {own.device} is no parameter of the network"
            right = part(replica[name], own, name)
            if right.shape != array.shape or not np.array_equal(right, array, equal_nan=True):
                return f"{name} on {own.device} is not what was exported"
    return ""


def part(whole: np.ndarray, held: Held, name: str) -> np.ndarray:
    """That part of a whole tensor which a device should hold."""
    if name not in held.starts:
        return whole
    length = held.arrays[name].shape
    starts = held.starts[name]
    return whole[tuple(slice(start, start + size) for start, size in zip(starts, length, strict=True))]
