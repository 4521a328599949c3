"""What programs under MirroredStrategy and MultiWorkerMirroredStrategy do besides their step.

Under these strategies every variable has a mirror on each replica's device, and a placed batch, a loss or a gradient is
one object that holds a value for each replica of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import placement, weights
from tf_impl.program import mean_over_parts
from tf_impl.several_steps import SeveralSteps

GROUP_KEY = 1_000_000
"""Of all replicas, in an all-reduce inside XLA. TensorFlow counts the keys of its own groups from 1."""


def sum_over_replicas(gradients: Sequence[tf.Tensor], *, constant_keys: bool = False) -> list[tf.Tensor]:
    """In replica context: the sum of each gradient over the replicas, by one all-reduce of all of them as one vector.

    They must have one format. TensorFlow's own all_reduce of a list joins them in the same way, but it takes no keys.
    """
    context = tf.distribute.get_replica_context()
    vector = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
    if constant_keys:
        vector = all_reduce_with_constant_keys(vector, context.num_replicas_in_sync)
    else:
        vector = context.all_reduce(tf.distribute.ReduceOp.SUM, vector)
    parts = tf.split(vector, [gradient.shape.num_elements() for gradient in gradients])
    return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


def all_reduce_with_constant_keys(vector: tf.Tensor, replicas: int) -> tf.Tensor:
    """The sum of a vector over all replicas, in a function that XLA compiles and that has no other collectives.

    `ReplicaContext.all_reduce` gives its operation a new key at every call, a number in host memory. XLA does not use
    it, but TensorFlow copies it to the GPU, and the copy waits until the GPU has done all that it was given before.
    """
    return tf.raw_ops.CollectiveReduceV2(
        input=vector, group_size=replicas, group_key=GROUP_KEY, instance_key=0, ordering_token=[],
        merge_op="Add", final_op="Id", communication_hint="auto",
    )  # fmt: skip


class ReplicatedProgram(SeveralSteps):
    """A program with one replica on each of `devices`. Build it in the strategy's scope."""

    def __init__(self, job: Job, strategy: tf.distribute.Strategy, model: keras.Model, devices: Sequence[str]) -> None:
        super().__init__(job, [model], devices)
        self.strategy = strategy
        self.share_count = strategy.num_replicas_in_sync
        first = job.world.rank * len(devices)
        self.own_shares = range(first, first + len(devices))
        self.constant_keys = job.settings.get("xla_step", False)  # never on beside a synchronized BatchNorm

    def to_devices(self, own: Sequence[placement.Parts]) -> Any:
        """Each replica's share, on its device before the step asks for it."""

        def share_of(replica: tf.distribute.ValueContext) -> placement.Parts:
            index = int(replica.replica_id_in_sync_group) - self.own_shares[0]  # the id counts over all processes
            return placement.to_device(own[index], self.devices[index])

        return self.strategy.experimental_distribute_values_from_function(share_of)

    def mean(self, values: Any) -> tf.Tensor:
        """The mean of the replicas' values."""
        return self.strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None)

    def loss(self, of: Any = None) -> float:
        """The mean of the replicas' losses."""
        return float(self.mean(self.last_loss if of is None else of))

    @tf.function
    def evaluation_step(self, parts: Any) -> Any:
        """Loss and accuracy of each replica's share."""
        return self.strategy.run(self.evaluate_replica, args=(parts,))

    def evaluate_replica(self, parts: placement.Parts) -> tf.Tensor:
        """In replica context: loss and accuracy of this replica's share as one tensor."""
        self.average_running()
        return mean_over_parts(self.evaluate_part, parts)

    def evaluate(self, placed: Any) -> tuple[float, float]:
        """Mean loss and accuracy over all replicas."""
        loss, accuracy = self.mean(self.evaluation_step(placed)).numpy()
        return float(loss), float(accuracy)

    def average_running(self) -> None:
        """In replica context: set BatchNorm's running statistics to their mean over the replicas.

        Keras never does this: each replica keeps the statistics of its own samples, and only the first replica's are
        saved.
        """
        if self.running:
            context, variables = tf.distribute.get_replica_context(), list(self.running.values())
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.identity(variable) for variable in variables])
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

    @tf.function
    def averaging_step(self) -> None:
        """`average_running` on all replicas."""
        self.strategy.run(self.average_running)

    def state(self) -> Arrays | None:
        """As Program.state, with the running statistics averaged over the replicas."""
        self.averaging_step()
        return super().state()

    def export(self) -> list[Arrays]:
        """The parameters of each replica of this process."""
        mirrors = {
            name: self.strategy.experimental_local_results(variable) for name, variable in self.variables.items()
        }
        return [
            weights.parameters({name: values[index] for name, values in mirrors.items()})
            for index in range(len(self.devices))
        ]
