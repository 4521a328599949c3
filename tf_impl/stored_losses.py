"""The setting `stored_losses`: each replica stores its loss in a variable, and the step returns nothing.

A tf.function promises the order of the code. So what it returns waits for all operations of its graph that change a
variable (automatic control dependencies). If these are on several devices, TensorFlow adds control edges between the
devices, and on GPUs such an edge is passed on by the host, when the GPU has come so far. So a call returns only when
all GPUs are done. With the setting, the host begins the next call meanwhile:

    returned  host | call                  | call                  |
              GPUs |      | step 1         |      | step 2         |
    stored    host | call |  call              | call              |
              GPUs |      | step 1         |   | step 2         |

In a function that returns nothing, no operation waits for several devices. The losses are read from the variables after
the call. Measured in reports/probes/two_gpus/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from harness.contract import Job
from tf_impl.replicas import ReplicatedProgram


class StoredLosses(ReplicatedProgram):
    """Put it before a ReplicatedProgram whose process drives all replicas: class X(StoredLosses, Y)."""

    def __init__(self, job: Job, *known: Any) -> None:
        super().__init__(job, *known)
        self.loss_variables: list[tf.Variable] = []  # for each step of a call, its loss on each replica
        self.make_loss_variables(1)

    def make_loss_variables(self, count: int) -> None:
        """Make what is missing for a call of so many steps."""
        while len(self.loss_variables) < count:
            with tf.init_scope(), self.strategy.scope():
                variable = tf.Variable(
                    tf.zeros((), self.dtype),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,  # each replica assigns its own value
                    aggregation=tf.VariableAggregation.MEAN,
                )
            self.loss_variables.append(variable)

    @tf.function
    def train_step(self, parts: Any) -> None:
        self.store(parts, self.loss_variables[0])

    @tf.function
    def train_steps(self, batches: tuple[Any, ...]) -> Any:
        for parts, variable in zip(batches, self.loss_variables, strict=False):
            self.store(parts, variable)

    def store(self, parts: Any, variable: tf.Variable) -> None:
        """In a graph: one step, and its losses into the variable."""
        train_step: Any = super(StoredLosses, type(self)).train_step
        losses = train_step.python_function(self, parts)
        self.strategy.run(variable.assign, args=(losses,))

    def step(self, placed: Any) -> Any:
        self.train_step(placed)
        self.last_loss = self.stored(0)
        return self.last_loss

    def steps(self, batches: Sequence[Any]) -> list[Any]:
        self.make_loss_variables(len(batches))
        self.train_steps(tuple(batches))
        losses = [self.stored(step) for step in range(len(batches))]
        self.last_loss = losses[-1]
        return losses

    def stored(self, step: int) -> tuple[tf.Tensor, ...]:
        """The losses of a step of the last call, on their devices.

        `value` leaves them there. `read_value` copies them to the default device, for which the host waits.
        """
        of_replicas = self.strategy.experimental_local_results(self.loss_variables[step])
        return tuple(variable.value() for variable in of_replicas)

    def loss(self, of: Any = None) -> float:
        """The mean of the replicas' losses."""
        return float(np.mean([float(loss) for loss in (self.last_loss if of is None else of)]))
