"""The training loop as a script would write it: it calls a program's own tf.function, without the suite's code.

It runs between the timed blocks on GPUs and shows what the suite's own code costs: harness/worker/measure.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any


def loop(program: Any, batches: Sequence[Any]) -> Callable[[int], None]:
    """A function that makes a given number of updates, on the batches in turn.

    It changes the program's state as the program's own steps do.
    """
    step = program.train_step

    def updates(steps: int) -> None:
        for batch in islice(cycle(batches), steps):
            step(batch)

    return updates


LOOPS = {"single": loop, "mirrored": loop}
"""By strategy."""
