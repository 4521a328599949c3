"""tf.distribute.MultiWorkerMirroredStrategy: mirrored variables, one process a device, as across hosts.

Each process holds one mirror of every parameter and of the optimizer's state, and takes its rank's part of the batch.
The step is MirroredStrategy's (mirrored.py): an all-reduce in replica context sums the gradients of all shares of the
mean loss, then every process makes the same update. All processes wait for each other in the all-reduce, which is a
collective operation between their TensorFlow servers: "ring" runs over gRPC, "nccl" between the GPUs, "auto" is
TensorFlow's choice.

Each process tells TensorFlow who all are before anything else. Usually the variable TF_CONFIG does; here the same is
handed over as a resolver: {"cluster": {"worker": [address of each]}, "task": {"type": "worker", "index": rank}}.
"""

from __future__ import annotations

import tensorflow as tf

from harness.contract import Job, World
from tf_impl import runtime
from tf_impl.strategies.mirrored import Mirrored

COMMUNICATION = {
    "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
    "ring": tf.distribute.experimental.CommunicationImplementation.RING,
    "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
}


def cluster(world: World) -> tf.distribute.cluster_resolver.ClusterResolver:
    """The content of TF_CONFIG: each rank brings its own address to the meeting, and learns all."""
    workers = [own for (own,) in runtime.meeting(world).addresses()]
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}),
        task_type="worker",
        task_id=world.rank,
        # said here, because looking for devices would start TensorFlow's context before the strategy is made
        num_accelerators={"GPU": world.local_devices} if world.platform == "gpu" else {},
        rpc_layer="grpc",
    )


def build(job: Job) -> Mirrored:
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=COMMUNICATION[job.options["communication"]]
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster(job.world), communication_options=options)
    return Mirrored(job, strategy, list(strategy.extended.worker_devices))
