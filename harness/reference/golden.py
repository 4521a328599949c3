"""What a reference found, and the file in which it waits for the cells that are compared with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.spec.arrays import Arrays

FIRST = "after_first."
"""Begins the names of the groups of Golden.after_first in a file; the worker's number follows."""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """What a training computes. `losses[k]`: loss of step k, before its update. `params`: after the last step.

    `after_first`: parameters after the first step. Workers that train on their own have different parameters then, so
    there is one mapping for each of them; otherwise there is a single one. `running`: BatchNorm's running statistics
    after the last step (running_statistics.Histories).

    `noise`: how much each quantity changes when the initial weights are rounded once more (harness/gate/parity.py).
    """

    initial: Arrays
    losses: np.ndarray
    after_first: tuple[Arrays, ...]
    params: Arrays
    running: Arrays = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write to one .npz file."""
        noise = {name: np.array(value) for name, value in self.noise.items()}
        named = {"initial": self.initial, "params": self.params, "running": self.running, "noise": noise}
        named |= {f"{FIRST}{worker}": params for worker, params in enumerate(self.after_first)}
        flat = {f"{group}/{name}": array for group, arrays in named.items() for name, array in arrays.items()}
        np.savez(path, losses=self.losses, **flat)  # pyright: ignore[reportArgumentType]

    @classmethod
    def load(cls, path: Path) -> Golden:
        """Read what `save` wrote; nothing is unpickled."""
        groups: defaultdict[str, Arrays] = defaultdict(dict)
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                group, _, name = key.partition("/")
                if name:
                    groups[group][name] = archive[key]
            workers = sum(name.startswith(FIRST) for name in groups)
            return cls(
                initial=groups["initial"],
                losses=archive["losses"],
                after_first=tuple(groups[f"{FIRST}{worker}"] for worker in range(workers)),
                params=groups["params"],
                running=groups["running"],
                noise={name: float(value) for name, value in groups["noise"].items()},
            )


def read_losses(path: Path) -> tuple[float, ...]:
    """The losses alone of a file that Golden.save wrote."""
    with np.load(path, allow_pickle=False) as archive:
        return tuple(archive["losses"].tolist())
