"""tf.distribute.MirroredStrategy: one process drives all devices, each with a mirror of every variable.

Variables made in the strategy's scope get one copy a device. `strategy.run` traces the replica step once for each
device, on its own part of the batch; inside it each replica differentiates its share of the mean loss, `all_reduce`
sums the gradients over the replicas, and every replica then makes the same update to its own copy. All replicas wait
for each other in the all-reduce. With accumulation the gradients of all parts are added up on each device first: still
one all-reduce.

What all-reduces is the option `cross_device`: "auto" is TensorFlow's choice, its collective operations, which on GPUs
are NCCL's; "nccl" is the older operation on NCCL; "hierarchical_copy" copies along a tree made for the DGX-1's NVLinks;
"one_device" adds everything up on the first device and copies it back. The tree is two groups of half the devices each,
so with an odd number of them TensorFlow leaves one's gradients out, without a word.

BatchNorm sees each device's part; `--batch-norm global` takes Keras' synchronized layer, which sums sums and squares
over the replicas in every forward pass, and all-reduces their gradients in every backward pass. To evaluate and
to save, its running statistics are averaged over the replicas.

The updates are plain assignments in replica context: no Keras optimizer, which would all-reduce by itself, and defines
its updates in its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import models, placement, runtime, weights
from tf_impl.training import Training

CROSS_DEVICE = {
    "auto": lambda: None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


class Mirrored(Training):
    def __init__(self, job: Job, strategy: tf.distribute.Strategy, devices: list[str]) -> None:
        """`devices`: those of this process, one a replica."""
        self.strategy, self.ranks = strategy, strategy.num_replicas_in_sync
        # As tf.nn.compute_average_loss weighs it: then the sum over the replicas is the gradient of the mean loss. With
        # ReduceOp.MEAN TensorFlow would scale behind the all-reduce, by an operation of its own for each variable.
        self.loss_share = 1 / self.ranks
        self.own = range(job.world.rank * len(devices), (job.world.rank + 1) * len(devices))
        with strategy.scope():
            super().__init__(job, [models.build(job.workload, synchronized=job.normalization == "global")], devices)
        self.compiled_averaging = tf.function(lambda: strategy.run(self.average_running))

    def train_step(self, parts: Any) -> tuple[Any, Any]:
        # The losses stay on their devices: reducing them here would wait for the host at every step.
        return self.strategy.run(super().train_step, args=(parts,))

    def loss_and_gradients(self, parts: placement.Parts) -> tuple[tf.Tensor, Any]:
        """The loss is the mean over this replica's samples, the gradients are those of the mean over all."""
        loss, gradients = super().loss_and_gradients(parts)
        return loss, tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)

    def put(self, own: Sequence[placement.Parts]) -> Any:
        """Each device's share, on its device before the step asks for it."""

        def of_replica(context: tf.distribute.ValueContext) -> placement.Parts:
            index = int(context.replica_id_in_sync_group) - self.own[0]  # it counts over all processes
            return placement.on_device(own[index], self.devices[index])

        return self.strategy.experimental_distribute_values_from_function(of_replica)

    def evaluation_step(self, parts: Any) -> Any:
        def of_replica(parts: placement.Parts) -> tf.Tensor:
            self.average_running()
            return super(Mirrored, self).evaluation_step(parts)

        return self.strategy.run(of_replica, args=(parts,))

    def average_running(self) -> None:
        """In replica context: BatchNorm's running statistics become the mean over the replicas. Keras never makes them
        so: each replica keeps those of its own samples, and what is saved is the first one's."""
        if self.running:
            context, variables = tf.distribute.get_replica_context(), list(self.running.values())
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.identity(variable) for variable in variables])
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

    def evaluate(self, placed: Any) -> tuple[float, float]:
        loss, accuracy = self.mean(self.compiled_evaluation(placed)).numpy()
        return float(loss), float(accuracy)

    def state(self) -> Arrays | None:
        self.compiled_averaging()
        return super().state()

    def mean(self, values: Any) -> tf.Tensor:
        """Of what each replica has."""
        return self.strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None)

    def loss(self, of: Any = None) -> float:
        return float(self.mean(self.last[0] if of is None else of))

    def gradients(self) -> Arrays | None:
        first = [self.strategy.experimental_local_results(gradient)[0] for gradient in self.last[1]]
        return weights.parameters(dict(zip(self.variables, first, strict=True)))

    def export(self) -> list[Arrays]:
        return [
            weights.parameters({name: variable.values[index] for name, variable in self.variables.items()})
            for index in range(len(self.devices))
        ]


def build(job: Job) -> Mirrored:
    devices = runtime.devices(job.world)
    across = CROSS_DEVICE[job.options["cross_device"]]()
    return Mirrored(job, tf.distribute.MirroredStrategy(devices, cross_device_ops=across), devices)
