"""The training loop as a script would have it, over a program's own compiled step: without the suite's code.

Run between the timed blocks on GPUs, it shows what the suite's own code costs: harness/worker/phases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import jax


def loop(program: Any, batches: Sequence[tuple[jax.Array, jax.Array]]) -> Callable[[int], None]:
    """What makes so many updates on the batches in turn. The program's state is changed as by its own steps."""
    step = program.compiled

    def updates(steps: int) -> None:
        state, metrics = program.held, program.metrics
        for x, y in islice(cycle(batches), steps):
            state, metrics = step(state, x, y)
        program.held, program.metrics = state, metrics

    return updates


LOOPS = {"single": loop, "pmap": loop, "jit_sharding": loop, "shard_map": loop}
"""By strategy."""
