"""Who is in TensorFlow's cluster: what TF_CONFIG says for a strategy, and the servers of ParameterServerStrategy.

Every rank brings the addresses of its own servers to the meeting, and learns those of all the others.
"""

from __future__ import annotations

import tensorflow as tf

from harness.contract import World
from tf_impl import runtime

SERVER = "/job:ps/replica:0/task:0"
"""The device of the parameter server: the host memory of rank 0's process."""


def of_workers(world: World) -> tf.distribute.cluster_resolver.ClusterResolver:
    """The content of TF_CONFIG for MultiWorkerMirroredStrategy, which then starts this process's server itself."""
    workers = [address for (address,) in runtime.meeting(world).addresses()]
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}),
        task_type="worker",
        task_id=world.rank,
        # Given here, because looking for devices would start TensorFlow's context before the strategy is created.
        num_accelerators={"GPU": world.local_devices} if world.platform == "gpu" else {},
        rpc_layer="grpc",
    )


def device_of_worker(world: World) -> str:
    """The device of a worker of ParameterServerStrategy, as the worker calls it."""
    return f"/device:{world.platform.upper()}:0"


def worker_devices(world: World) -> list[str]:
    """The device of each worker, one per rank."""
    return [f"/job:worker/replica:0/task:{rank}{device_of_worker(world)}" for rank in range(world.processes)]


def gpu_options(world: World) -> tf.compat.v1.GPUOptions:
    """Lets a server see the one GPU that this process drives."""
    return tf.compat.v1.GPUOptions(allow_growth=True, visible_device_list=str(world.first_device))


def start_servers(world: World) -> tuple[tf.train.ClusterSpec, list[tf.distribute.Server]]:
    """Start this process's servers: the worker's and, in rank 0, the parameter server's.

    Returns when all ranks have theirs.
    """
    addresses = runtime.meeting(world).addresses(1 if world.rank else 2)
    cluster = tf.train.ClusterSpec({"worker": [first for first, *_ in addresses], "ps": addresses[0][1:]})
    shared = {
        "gpu_options": gpu_options(world),
        "intra_op_parallelism_threads": world.cores,
        # Each part of a push that waits for another process holds a thread. With too few threads, all wait forever.
        "inter_op_parallelism_threads": max(world.cores, world.processes + 1),
    }
    own_gpu = tf.compat.v1.ConfigProto(**shared)
    no_gpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, **shared)
    configs = {"worker": own_gpu if world.platform == "gpu" else no_gpu}
    if world.rank == 0:
        configs["ps"] = no_gpu
    servers = [
        tf.distribute.Server(cluster, job_name=kind, task_index=world.rank, config=config, protocol="grpc")
        for kind, config in configs.items()
    ]
    runtime.barrier(world)
    return cluster, servers
