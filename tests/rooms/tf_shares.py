"""python tf_shares.py: on which of a worker's devices ParameterServerStrategy's shares of a batch lie. Prints JSON."""

import json
import socket

import numpy as np
import tensorflow as tf

from tf_impl.coordinator import Share


def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


cluster = tf.train.ClusterSpec({"worker": [address()], "ps": [address()]})
two = tf.compat.v1.ConfigProto(device_count={"CPU": 2})
servers = [
    tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc", config=two) for job in ("worker", "ps")
]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc", num_accelerators={})
coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))
part = tf.constant(np.ones((4, 3), np.float32)), tf.constant(np.arange(4))
found = {}
for device in ("/device:CPU:0", "/device:CPU:1"):
    share = Share.put(coordinator, (part,), device)
    found[device] = [tensor.device for tensor in tf.nest.flatten(tuple(share))]
print(json.dumps(found))
