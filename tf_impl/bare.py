"""The training loop as a script would have it, over a program's own tf.function: without the suite's code.

Run between the timed blocks on GPUs, it shows what the suite's own code costs: harness/worker/phases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any


def loop(program: Any, batches: Sequence[Any]) -> Callable[[int], None]:
    """What makes so many updates on the batches in turn. The program's state is changed as by its own steps."""
    step = program.compiled

    def updates(steps: int) -> None:
        for batch in islice(cycle(batches), steps):
            step(batch)

    return updates


LOOPS = {"single": loop, "mirrored": loop}
"""By strategy."""
