"""tf.distribute.ParameterServerStrategy: one server holds the parameters, workers push gradients when they have them.

    server    | p0 | p1 |    | p0 |    | p1 | p0 | ...     one update for each push, in the order of arrival
    worker 0  | share of step 0 | step 1     | step 2 ...   reads parameters, pushes a gradient, goes on
    worker 1  | share of step 0  | step 1       | step 2 ...

The server, in rank 0's process and host memory, has the only copy of parameters and optimizer state. Every rank's
process is a worker: for each step it reads the parameters, takes the gradient of its share of the batch, and pushes it;
the server makes one whole update of it. Nobody waits for another worker, so a gradient may be of parameters that others
have changed meanwhile: this is not the training of a single device (Dean et al. 2012, harness.golden.replay). Pushes
wait for each other only while the server updates; what a worker reads may be of two versions, one for each variable.
BatchNorm sees each worker's share; the running averages are the server's, and all workers write them.

Rank 0 is also the coordinator: it has the graph of a push, and sends it to the workers to run. ClusterCoordinator hands
a function to whichever worker is free ("there is no support of worker assignment", as `schedule` says). Here the
shares lie on their workers' devices, so each worker has a thread that calls the same graph under its own `tf.device`,
which is what ClusterCoordinator does inside. In the parity phase each push waits for the one before, in the order of
the ranks: then what is computed is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from harness.contract import Arrays, Job, World
from tf_impl import models, placement, runtime
from tf_impl.training import Training

SERVER = "/job:ps/replica:0/task:0"


class Coordinator(Training):
    """The program of rank 0: `step` asks each worker for a push, `sync` waits until all have been made."""

    def __init__(self, job: Job, strategy: tf.distribute.Strategy) -> None:
        kind, ranks = job.world.platform.upper(), range(job.world.processes)
        devices = [f"/job:worker/replica:0/task:{rank}/device:{kind}:0" for rank in ranks]
        self.ranks, self.own = len(ranks), ranks
        with strategy.scope():
            super().__init__(job, [models.build(job.workload)], devices)
        with tf.device(SERVER):
            self.turn = tf.CriticalSection()
        self.threads = [ThreadPoolExecutor(1, f"worker {rank}") for rank in ranks]
        self.graphs: dict[Any, Any] = {}
        self.last: list[Future] = []  # the last step's pushes
        self.pushed: list[Future] = []  # all since the last sync

    def train_step(self, parts: placement.Parts) -> tuple[Any, Any]:
        loss, gradients = self.loss_and_gradients(parts)

        def update() -> list[tf.Tensor]:
            self.optimizer.apply(gradients)
            return [tf.identity(variable) for variable in self.optimizer.state()]

        # One push at a time: else two could read the same momentum, and one of them be lost. A critical section ends
        # when its result is there, whatever else is in it, so the result is all that was assigned.
        with tf.device(SERVER):
            self.turn.execute(update)
        return loss, gradients if self.job.keep_gradients else []

    def put(self, own: Sequence[placement.Parts]) -> list[placement.Parts]:
        return [placement.on_device(parts, device) for parts, device in zip(own, self.devices, strict=True)]

    def graph(self, function: Any, parts: placement.Parts) -> Any:
        """One graph of `function` for all workers: the tf.function itself would be traced anew on each device."""
        key = function, parts[0][1].shape  # the targets' shape also says whether they have factors
        if key not in self.graphs:
            self.graphs[key] = function.get_concrete_function(parts)
        return self.graphs[key]

    def step(self, placed: list[placement.Parts]) -> list[Future]:
        graph = self.graph(self.compiled, placed[0])
        self.last = []
        for thread, device, parts in zip(self.threads, self.devices, placed, strict=True):
            self.last.append(thread.submit(self.call, graph, device, parts))
            if self.job.keep_gradients:
                self.last[-1].result()  # in turn
        self.pushed += self.last
        return self.last

    def call(self, graph: Any, device: str, parts: placement.Parts) -> Any:
        with tf.device(device):
            return graph(parts)

    def sync(self) -> None:
        for push in self.pushed:  # all, so that no error is lost
            push.result()  # there when the server has made its update
        self.pushed = []

    def loss(self, of: Any = None) -> float:
        """The mean of the workers' losses, each of the parameters that it saw."""
        pushes = self.last if of is None else of
        loss = float(np.mean([push.result()[0].numpy() for push in pushes]))
        return runtime.meeting(self.job.world).exchange(loss)[0]

    def evaluate(self, placed: list[placement.Parts]) -> tuple[float, float]:
        """Each worker its share, of the parameters as they are when all pushes have been made."""
        self.sync()
        graph = self.graph(self.compiled_evaluation, placed[0])
        calls = [
            thread.submit(self.call, graph, device, parts)
            for thread, device, parts in zip(self.threads, self.devices, placed, strict=True)
        ]
        scores = np.mean([call.result().numpy() for call in calls], axis=0)
        loss, accuracy = runtime.meeting(self.job.world).exchange(scores.tolist())[0]
        return loss, accuracy

    def state(self) -> Arrays | None:
        self.sync()
        return super().state()

    def gradients(self) -> Arrays | None:
        """The mean of the workers' gradients, each of the parameters that it saw."""
        found = zip(self.variables, zip(*(push.result()[1] for push in self.last), strict=True), strict=True)
        return {name: np.mean([gradient.numpy() for gradient in pushed], axis=0) for name, pushed in found}


class Worker:
    """The program of every other rank: its TensorFlow server does the work, asked by rank 0."""

    own = ()  # rank 0 puts the shares onto all devices

    def __init__(self, job: Job, server: tf.distribute.Server) -> None:
        self.job, self.server = job, server

    def place(self, batch: Arrays) -> None: ...

    def step(self, placed: None) -> None: ...

    def sync(self) -> None: ...

    def loss(self, of: None = None) -> float:
        return runtime.meeting(self.job.world).exchange()[0]

    def evaluate(self, placed: None) -> tuple[float, float]:
        loss, accuracy = runtime.meeting(self.job.world).exchange()[0]
        return loss, accuracy

    def state(self) -> None: ...

    def load_state(self, state: Arrays) -> None: ...

    def gradients(self) -> None: ...

    def export(self) -> list[Arrays]:
        return []


def start_servers(world: World) -> tuple[tf.train.ClusterSpec, list[tf.distribute.Server]]:
    """This process's servers: its worker's and, in rank 0, the parameter server. Returns when all ranks have theirs."""
    addresses = runtime.meeting(world).addresses(1 if world.rank else 2)
    cluster = tf.train.ClusterSpec({"worker": [first for first, *_ in addresses], "ps": addresses[0][1:]})
    options = tf.compat.v1.GPUOptions(allow_growth=True, visible_device_list=str(world.rank))
    everything = {
        "gpu_options": options,
        "intra_op_parallelism_threads": world.cores,
        # Each part of a push that waits for another process holds a thread; with too few of them all wait for ever.
        "inter_op_parallelism_threads": max(world.cores, world.processes + 1),
    }
    own_gpu = tf.compat.v1.ConfigProto(**everything)
    no_gpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0}, **everything)
    kinds = {"worker": own_gpu if world.platform == "gpu" else no_gpu} | ({} if world.rank else {"ps": no_gpu})
    servers = [
        tf.distribute.Server(cluster, job_name=kind, task_index=world.rank, config=config, protocol="grpc")
        for kind, config in kinds.items()
    ]
    runtime.barrier(world)
    return cluster, servers


def build(job: Job) -> Coordinator | Worker:
    cluster, servers = start_servers(job.world)
    if job.world.rank:
        return Worker(job, servers[0])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc", num_accelerators={})
    return Coordinator(job, tf.distribute.ParameterServerStrategy(resolver))
