"""tf.distribute.MultiWorkerMirroredStrategy: mirrored variables with one process per device, as across hosts.

Each process holds one mirror of every parameter and of the optimizer state, and takes its rank's share of the batch. It
computes the gradient of its share of the mean loss, an all-reduce sums the gradients over the processes, and every
process makes the same update. All processes wait for each other in the all-reduce, which is a collective operation
between their TensorFlow servers. The option `communication` chooses it: "ring" runs over gRPC, "nccl" between the GPUs,
and "auto" is TensorFlow's choice. BatchNorm and the setting `xla_step` work as in mirrored.py.

    process 0 | F | B of the last layers | B of the first layers |            | update
    process 1 | F | B of the last layers | B of the first layers |            | update      F forward, B backward
    links     |                                                  | all-reduce |

Each process must tell TensorFlow who all the processes are before it does anything else. Usually the variable TF_CONFIG
does this; here cluster.py hands over the same content as a resolver:
{"cluster": {"worker": [the address of each]}, "task": {"type": "worker", "index": rank}}.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from harness.contract import Job
from tf_impl import cluster, models, placement
from tf_impl.program import LossAndGradients, mean_over_parts
from tf_impl.replicas import ReplicatedProgram, sum_over_replicas
from tf_impl.tuning import xla_if_set, xla_step_if_set

COMMUNICATION = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


class MultiWorkerMirrored(ReplicatedProgram):
    once_a_process = True  # the processes of a second strategy never meet

    def __init__(self, job: Job) -> None:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster.of_workers(job.world),
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=COMMUNICATION[job.options["communication"]]
            ),
        )
        self.loss_share = 1 / strategy.num_replicas_in_sync  # the all-reduce sums: see mirrored.py
        with strategy.scope():
            self.model = models.build(
                job.workload,
                momentum=job.statistics_momentum,
                synchronized=job.normalization == "global",
                settings=job.settings,
            )
            super().__init__(job, strategy, self.model, strategy.extended.worker_devices)

    @tf.function
    def train_step(self, parts: Any) -> Any:
        # On this process's one replica. The other processes run the same step and meet it in the all-reduce.
        return self.strategy.run(self.replica_step, args=(parts,))

    @xla_step_if_set
    def replica_step(self, parts: placement.Parts) -> tf.Tensor:
        loss, gradients = mean_over_parts(self.loss_and_gradients, parts)
        self.optimizer.apply(sum_over_replicas(gradients, constant_keys=self.constant_keys))
        return loss

    @xla_if_set
    def loss_and_gradients(self, x: tf.Tensor, y: tf.Tensor) -> LossAndGradients:
        with tf.GradientTape() as tape:
            loss = self.loss_fn(self.model(x, training=True), y)  # the mean over this process's samples
            share = loss * self.loss_share
        return loss, tape.gradient(share, self.parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def build(job: Job) -> MultiWorkerMirrored:
    return MultiWorkerMirrored(job)
