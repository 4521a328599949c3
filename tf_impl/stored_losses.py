"""The setting `stored_losses`: each replica stores its loss in a variable, and the step returns nothing.

A tf.function promises the order of the code. So what it returns waits for everything in its graph that changes a
variable (automatic control dependencies). If that is on several GPUs, TensorFlow sends word from each to the others
when it has been computed, and the call does not return before. Then the GPUs wait for the next call:

    returned  host | call                  | call                  |
              GPUs |      | step 1         |      | step 2         |
    stored    host | call | call | call      | call           |
              GPUs |      | step 1         | step 2         | step 3

Of a function that returns nothing, nothing waits for several GPUs. The losses are read from the variables afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.contract import Job
from tf_impl.replicas import ReplicatedProgram


class StoresLosses(ReplicatedProgram):
    """A ReplicatedProgram whose process drives all replicas. Its `train_step` returns what `handed_over` returns."""

    def __init__(self, job: Job, strategy: tf.distribute.Strategy, model: keras.Model, devices: Sequence[str]) -> None:
        super().__init__(job, strategy, model, devices)
        self.stores = job.settings.get("stored_losses", False)
        self.slots: list[tf.Variable] = []  # for each step of a call, its loss on each replica
        self.slot = 0  # the step of a call that is being traced

    def handed_over(self, losses: Any) -> Any:
        """At the end of a step: its losses, for it to return. With the setting it stores them, and returns None."""
        if not self.stores:
            return losses
        slot = self.slots[self.slot]

        def store(loss: tf.Tensor) -> None:
            slot.assign(tf.cast(loss, slot.dtype))

        self.strategy.run(store, args=(losses,))
        return None

    @tf.function
    def train_steps(self, batches: tuple[Any, ...]) -> Any:
        """As SeveralSteps.train_steps."""
        train_step: Any = type(self).train_step
        losses = []
        for self.slot, parts in enumerate(batches):
            losses.append(train_step.python_function(self, parts))
        self.slot = 0
        return None if self.stores else losses

    def step(self, placed: Any) -> Any:
        if not self.stores:
            return super().step(placed)
        self.make_slots(1)
        self.train_step(placed)
        (self.last_loss,) = self.read_slots(1)
        return self.last_loss

    def steps(self, batches: Sequence[Any]) -> list[Any]:
        if not self.stores:
            return super().steps(batches)
        self.make_slots(len(batches))
        self.train_steps(tuple(batches))
        losses = self.read_slots(len(batches))
        self.last_loss = losses[-1]
        return losses

    def make_slots(self, count: int) -> None:
        """Make the variables for a call of so many steps."""
        dtype = tf.float64 if self.job.precision == "fp64" else tf.float32
        with tf.init_scope(), self.strategy.scope():
            zero = tf.zeros((), dtype)
            while len(self.slots) < count:
                on_read = tf.VariableSynchronization.ON_READ  # each replica assigns its own value
                mean = tf.VariableAggregation.MEAN
                self.slots.append(tf.Variable(zero, trainable=False, synchronization=on_read, aggregation=mean))

    def read_slots(self, count: int) -> list[tuple[tf.Tensor, ...]]:
        """The losses of the steps of the last call, for each replica a tensor on its device."""
        return [
            tuple(replica.read_value() for replica in self.strategy.experimental_local_results(slot))
            for slot in self.slots[:count]
        ]

    def loss(self, of: Any = None) -> float:
        """The mean of the replicas' losses."""
        if not self.stores:
            return super().loss(of)
        return float(np.mean([float(loss) for loss in (self.last_loss if of is None else of)]))
