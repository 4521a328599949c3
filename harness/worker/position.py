"""How far a training has got."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.spec import Epoch


@dataclass
class Position:
    """The progress of a training: what a checkpoint keeps in addition to the program's state."""

    epochs: list[Epoch] = field(default_factory=list)  # from number 0, before the first step
    losses: list[float] = field(default_factory=list)  # of the first CHECKED_LOSSES steps

    @property
    def steps(self) -> int:
        """Steps of all epochs so far."""
        return sum(epoch.steps for epoch in self.epochs)
