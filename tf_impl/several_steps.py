"""Several steps in one call: a tf.function that calls the step once for each of several batches.

Each call of a tf.function costs host time, and the devices may wait for it. With k steps in a call, that cost is paid
once for k updates. Keras calls this `steps_per_execution`. Reads and assignments of a variable keep the order of the
code, so schedules, momentum and running statistics go on as they do from call to call.

    k calls of a step     | call | step 1 | call | step 2 | call | step 3 |
    one call of k steps   | call | step 1 | step 2 | step 3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_impl.program import Program


class SeveralSteps(Program):
    """A program whose step is a graph of this process alone, so that a larger graph can hold several of them."""

    def steps(self, batches: Sequence[Any]) -> list[Any]:
        """One update for each placed batch, all in one call. Returns their losses as they are on the devices."""
        losses = self.train_steps(tuple(batches))
        self.last_loss = losses[-1]
        return losses

    @tf.function
    def train_steps(self, batches: tuple[Any, ...]) -> list[Any]:
        """`train_step` on each batch in turn. Returns the loss of each."""
        # Its Python code, traced into this graph for each batch. A call of its graph would be one operation, and no
        # device could begin it before all devices have ended the previous call.
        train_step: Any = type(self).train_step
        return [train_step.python_function(self, parts) for parts in batches]
