"""tf.distribute.MirroredStrategy: one process drives all devices, each with a mirror of every variable.

Variables made in the strategy's scope get one copy a device. `strategy.run` traces the replica step once for each
device, on its own part of the batch; inside it `all_reduce` averages the gradients over the replicas, and every replica
then makes the same update to its own copy. All replicas wait for each other in the all-reduce; on GPUs it is NCCL's.

The updates are plain assignments in replica context: no Keras optimizer, which would sum gradients, not average them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import losses, models, optim, placement, runtime, weights


class Mirrored:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.devices = runtime.devices(job.world)
        self.dtype = runtime.DTYPES[job.precision]
        self.loss_fn = losses.get(job.workload.loss)
        self.strategy = tf.distribute.MirroredStrategy(self.devices)
        with self.strategy.scope():
            self.model = models.build(job.workload)
            self.variables = weights.variables(self.model)
            weights.load(self.variables, job.params)
            self.optimizer = optim.build(job.optimizer, list(self.variables.values()))
        self.compiled = tf.function(self.train_step)
        self.last: Any = None

    def replica_step(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, Any]:
        with tf.GradientTape() as tape:
            loss = self.loss_fn(self.model(x, training=True), y)  # the mean over this replica's part
        gradients: Any = tape.gradient(loss, list(self.variables.values()))
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        self.optimizer.apply(gradients)
        return loss, gradients if self.job.keep_gradients else []

    def train_step(self, x: Any, y: Any) -> tuple[Any, Any]:
        # The losses stay on their devices: reducing them here would wait for the host at every step.
        return self.strategy.run(self.replica_step, args=(x, y))

    def place(self, batch: Arrays) -> tuple[Any, Any]:
        return self.distribute(batch["x"]), self.distribute(batch["y"])

    def distribute(self, array: Any) -> Any:
        """Equal parts along the batch axis, each on its device before the step asks for it."""
        parts = array.reshape(len(self.devices), -1, *array.shape[1:])

        def part(context: tf.distribute.ValueContext) -> tf.Tensor:
            index = context.replica_id_in_sync_group
            with tf.device(self.devices[index]):
                return tf.identity(placement.tensor(parts[index], self.dtype))

        return self.strategy.experimental_distribute_values_from_function(part)

    def step(self, placed: tuple[Any, Any]) -> None:
        self.last = self.compiled(*placed)

    def sync(self) -> None:
        runtime.sync(self.job.world)

    def loss(self) -> float:
        return float(self.strategy.reduce(tf.distribute.ReduceOp.MEAN, self.last[0], axis=None))

    def gradients(self) -> Arrays | None:
        first = [self.strategy.experimental_local_results(gradient)[0] for gradient in self.last[1]]
        return weights.parameters(dict(zip(self.variables, first, strict=True)))

    def export(self) -> list[Arrays]:
        return [
            weights.parameters({name: variable.values[index] for name, variable in self.variables.items()})
            for index in range(len(self.devices))
        ]


def build(job: Job) -> Mirrored:
    return Mirrored(job)
