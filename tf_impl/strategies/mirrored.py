"""tf.distribute.MirroredStrategy: one process drives all devices, and each device has a mirror of every variable.

Variables created in the strategy's scope get one copy per device. `strategy.run` traces the replica step once for each
device, with that device's share of the batch. Each replica computes the gradient of its share of the mean loss,
`all_reduce` sums the gradients over the replicas, and every replica makes the same update to its own copy. All replicas
wait for each other in the all-reduce. With accumulation, each replica first averages the gradients of its parts, so
there is still one all-reduce.

    replica 0 | F | B of the last layers | B of the first layers |            | update
    replica 1 | F | B of the last layers | B of the first layers |            | update      F forward, B backward
    links     |                                                  | all-reduce |

The option `cross_device` says what does the all-reduce. "auto" is TensorFlow's choice: its collective operations, which
use NCCL on GPUs. "nccl" is the older operation on NCCL. "hierarchical_copy" copies along a tree that was designed for
the DGX-1's NVLinks. "one_device" sums everything on the first device and copies the result back. The tree has two
groups of half the devices each; with an odd number of devices TensorFlow silently leaves out the gradients of one.

BatchNorm normalizes over each device's share. `--batch-norm global` uses Keras' synchronized layer: it all-reduces sums
and sums of squares in every forward pass, and their gradients in every backward pass. The running statistics are
averaged over the replicas before an evaluation and before they are saved.

By default the all-reduce and the update are operations of the graph, which the host launches one by one. With the
setting `xla_step`, which the tuned track turns on where all devices are GPUs, each replica's step is one program of
XLA, from its loss to its update, with the all-reduce inside. Two things would then make each call wait until the GPUs
have done all earlier work, so that they idle between steps: what it returns (stored_losses.py), and the keys of its
all-reduce (replicas.py). With neither, two H100s run ResNet-50 at 1.95 times the speed of one; with both, at 1.61 times
(224 x 224, bf16, 256 images a GPU; reports/probes/two_gpus/README.md).

The update consists of plain assignments in replica context. A Keras optimizer would all-reduce by itself, and its
update rules differ from torch.optim's (optim.py).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from harness.contract import Job
from tf_impl import models, placement, runtime
from tf_impl.program import LossAndGradients, mean_over_parts
from tf_impl.replicas import ReplicatedProgram, sum_over_replicas
from tf_impl.stored_losses import StoredLosses
from tf_impl.tuning import xla_if_set, xla_step_if_set

KEYS = 100_000
"""How far the keys of two programs of a process lie apart."""
CROSS_DEVICE = {
    "auto": lambda: None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


class Mirrored(ReplicatedProgram):
    def __init__(self, job: Job) -> None:
        devices = runtime.devices(job.world)
        across = CROSS_DEVICE[job.options["cross_device"]]()
        # TensorFlow remembers the shape of each collective by its keys, which begin anew in each strategy. A program
        # that is built after another one may trace its collectives in another order, and needs keys of its own.
        tf.distribute.MirroredStrategy._collective_key_base += KEYS  # as TensorFlow's own tests do
        strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=across)
        # The weight that tf.nn.compute_average_loss gives: the sum over the replicas is then the gradient of the mean
        # loss. With ReduceOp.MEAN, TensorFlow would scale after the all-reduce, with one more operation for each
        # variable.
        self.loss_share = 1 / strategy.num_replicas_in_sync
        with strategy.scope():
            self.model = models.build(
                job.workload,
                momentum=job.statistics_momentum,
                synchronized=job.normalization == "global",
                settings=job.settings,
            )
            super().__init__(job, strategy, self.model, devices)

    @tf.function
    def train_step(self, parts: Any) -> Any:
        # The losses stay on their devices: reducing them here would wait for the host at every step.
        return self.strategy.run(self.replica_step, args=(parts,))

    @xla_step_if_set
    def replica_step(self, parts: placement.Parts) -> tf.Tensor:
        loss, gradients = mean_over_parts(self.loss_and_gradients, parts)
        self.optimizer.apply(sum_over_replicas(gradients, constant_keys=self.constant_keys))
        return loss

    @xla_if_set
    def loss_and_gradients(self, x: tf.Tensor, y: tf.Tensor) -> LossAndGradients:
        with tf.GradientTape() as tape:
            loss = self.loss_fn(self.model(x, training=True), y)  # the mean over this replica's samples
            share = loss * self.loss_share
        return loss, tape.gradient(share, self.parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)


class MirroredWithStoredLosses(StoredLosses, Mirrored):
    """With the setting `stored_losses`."""


def build(job: Job) -> Mirrored:
    return (MirroredWithStoredLosses if job.settings.get("stored_losses", False) else Mirrored)(job)
