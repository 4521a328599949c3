"""The register of planted faults, and the cells that they are planted in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.request import TrainingRequest


@dataclass(frozen=True)
class Cell:
    """Where faults are planted: a strategy on a workload, on 2 devices (`single` on 1), 12 samples a step.

    `known` are further fields of harness.request.Request.
    """

    strategy: str
    workload: str = "mnist_cnn"
    size: str = "tiny"
    options: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, object] = field(default_factory=dict)


TRAINING = {"training": TrainingRequest(epochs=1)}  # the parity phase of `train`: its last batch is uneven

FAULTS: dict[str, tuple[str, Callable[[], None]]] = {}  # name -> cell, and what plants it


def planted(cell: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a fault under its function's name."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        FAULTS[plant.__name__] = (cell, plant)
        return plant

    return register


def replaced(owner, name, change):
    """Replace owner.name by change(original)."""
    setattr(owner, name, change(getattr(owner, name)))
