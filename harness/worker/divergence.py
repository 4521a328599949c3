"""When a training means nothing: its loss is far too large, or it has nothing to learn."""

from __future__ import annotations

import math

EXPLODED = 10.0  # a loss this many times the first one counts as diverged


class Diverged(Exception):
    """The loss left the range in which a speed means anything."""


class TargetMet(Exception):
    """The target was met before the first step."""

    def __init__(self, *, target: float, accuracy: float) -> None:
        super().__init__(
            f"--target-accuracy {target:g}: the accuracy before the first step is {accuracy:.4g}; choose a higher one"
        )
        self.data = {"target": target, "accuracy": accuracy}


def check_loss(losses: list[float], step: int) -> None:
    """Raises Diverged if the last loss is not finite, or is EXPLODED times the first one."""
    if not math.isfinite(losses[-1]) or losses[-1] > EXPLODED * max(losses[0], 1.0):
        raise Diverged(f"loss {losses[-1]:.4g} at step {step}, from {losses[0]:.4g} at the start")
