"""The training loop as a script would write it: the program's own compiled step, without the suite's code around it.

On GPUs it runs between the timed blocks, and shows what the suite's own code costs: harness/worker/measure.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import jax


def loop(program: Any, batches: Sequence[tuple[jax.Array, jax.Array]]) -> Callable[[int], None]:
    """A function of a number of steps, which makes that many updates on the batches in turn.

    It changes the program's state as the program's own steps do.
    """
    step = program.compiled

    def updates(steps: int) -> None:
        state, loss = program.held, program.last_loss
        for x, y in islice(cycle(batches), steps):
            state, loss = step(state, x, y)
        program.held, program.last_loss = state, loss

    return updates


LOOPS = dict.fromkeys(("single", "pmap", "jit_sharding", "jit_explicit", "shard_map", "multi_process"), loop)
"""The loop of each strategy that has one."""
