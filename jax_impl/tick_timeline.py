"""When each stage worked in a pipeline that is one program, by the host's clock.

A program on the devices has no clock of its own. So in a copy of it that is made for this, the work of each tick is
preceded and followed by a callback to the host: it takes numbers that exist only when everything before it has been
computed, and returns a zero that everything after it needs. The callbacks cost time in each tick, and the gradient of a
tick must wait for one where the timed program need not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from harness.spec import Span
from jax_impl.timeline import from_the_first
from jax_impl.watching import StagePhase

Moment = tuple[StagePhase, int, int, int]
"""What a stage does ("forward" or "backward"), whether it has ended (0 or 1), which stage, and on which micro-batch."""


class Clock:
    """Notes when stages begin and end."""

    def __init__(self) -> None:
        self.seen: dict[Moment, float] = {}

    def around(
        self, make_work: Callable[..., Any], stage: jax.Array, count: int, *batch: jax.Array
    ) -> Callable[..., Any]:
        """`make_work(*batch)`, a function of (branch, micro_batch, *arrays), with callbacks before and after it and its
        gradient.

        As with jax.checkpoint, the gradient begins by running the work again. `stage`: this device's. `count`: of
        micro-batches; there is no work on others.
        """

        def noted(phase: StagePhase, ended: int, place: tuple[jax.Array, jax.Array], after: Any) -> jax.Array:
            def note(stage: Any, micro_batch: Any, _: Any) -> np.ndarray:
                if 0 <= micro_batch < count:
                    self.seen[phase, ended, int(stage), int(micro_batch)] = time.perf_counter()
                return np.zeros((), np.int32)

            numbers = [jnp.max(leaf) for leaf in jax.tree.leaves(after)]  # of whole arrays
            return io_callback(note, jax.ShapeDtypeStruct((), np.int32), *place, numbers)

        def forward(stage: jax.Array, batch: Any, branch: jax.Array, micro_batch: jax.Array, *arrays: jax.Array) -> Any:
            begun = noted("forward", 0, (stage, micro_batch), arrays)
            found = make_work(*batch)(branch + begun, micro_batch, *arrays)
            return _after(noted("forward", 1, (stage, micro_batch), found), found)

        def backward(given: tuple[Any, ...], gradients: Any) -> tuple[Any, ...]:
            stage, batch, branch, micro_batch, *arrays = given
            begun = noted("backward", 0, (stage, micro_batch), (arrays, gradients))
            _, pullback = jax.vjp(partial(make_work(*batch), branch + begun, micro_batch), *arrays)
            found = pullback(gradients)
            return None, None, None, None, *_after(noted("backward", 1, (stage, micro_batch), found), found)

        # What differs between devices must be an argument: a function with a gradient of its own cannot enclose it.
        timed = jax.custom_vjp(forward)
        timed.defvjp(lambda *given: (forward(*given), given), backward)
        return partial(timed, stage, batch)

    def spans(self) -> list[Span]:
        """What was noted, in seconds from the first moment, in the order of the ends."""
        found = [
            Span(stage=stage, micro_batch=number, phase=phase, start=start, end=self.seen[phase, 1, stage, number])
            for (phase, ended, stage, number), start in self.seen.items()
            if not ended
        ]
        return from_the_first(sorted(found, key=lambda span: span.end))


def _after(zero: jax.Array, tree: Any) -> Any:
    """The same arrays, which exist only when `zero` does."""
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), tree)
