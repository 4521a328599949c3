"""Under ParameterServerStrategy rank 0 coordinates: TensorFlow's ClusterCoordinator hands pushes to the workers.

    rank 0     schedule(push, share 0), schedule(push, share 1), ...                            join
    queue      | share 0 of step 0 | share 1 of step 0 | share 0 of step 1 | ...
    workers    whoever is free takes the next push

`schedule` queues a push and returns a RemoteValue at once. A thread for each worker, inside ClusterCoordinator, takes
the next push from the queue whenever its worker is free, so nobody can say which worker will train on which share: "At
this time, there is no support of worker assignment" (the documentation of `schedule`). Nor can workers read from each
other: ParameterServerStrategy's device filters show each of them only the servers and the coordinator. So every worker
has all shares of a batch, as PerWorkerValues. A push gets those of the worker that runs it.

The public way to PerWorkerValues is `iter(coordinator.create_per_worker_dataset(...))`. It suits a data set that the
workers read themselves. Here batches come from rank 0. A data set for each of them would be traced each time (25 ms for
two shares on a CPU, instead of 0.7 ms) and would stay in host memory, so every step would copy it to the GPU. So
`Share.put` calls the method by which create_per_worker_dataset makes its iterators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import cluster, placement, runtime
from tf_impl.program import Program


def hold(parts: placement.Parts, device: str) -> placement.Parts:
    """A share on a device ("/device:GPU:0") of the worker that is asked to hold it.

    Not a tf.function: what that returns is in the worker's host memory.
    """
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, parts)


class Share(tuple[placement.Parts, ...]):
    """One share of a batch, as each worker holds it on its device.

    `per_worker`: the same as an argument of `schedule`, a tf.distribute.coordinator.PerWorkerValue.
    """

    per_worker: Any

    @classmethod
    def put(cls, coordinator: Any, parts: placement.Parts, device: str) -> Share:
        """Copy a share from host memory to this device of all workers, and wait until it is there."""
        per_worker = coordinator._create_per_worker_resources(hold, args=(parts, device))
        for held in per_worker._values:  # as create_per_worker_dataset tells what its iterators are
            held._type_spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, parts)
        share = cls(held._get_values() for held in per_worker._values)
        share.per_worker = per_worker
        return share


class Coordinator(Program):
    """The program of rank 0. A strategy adds `train_step`: one worker's push. Build it in the strategy's scope.

    What a worker computes in a push must name `device`. A worker's TensorFlow would otherwise choose its CPU.
    """

    def __init__(self, job: Job, strategy: tf.distribute.Strategy, model: keras.Model) -> None:
        devices = cluster.worker_devices(job.world)
        super().__init__(job, [model], devices)
        self.device = cluster.device_of_worker(job.world)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.share_count = len(devices)
        self.own_shares = range(len(devices))

    def to_devices(self, own: Sequence[placement.Parts]) -> list[Share]:
        """Each share on every worker's device."""
        return [Share.put(self.coordinator, parts, self.device) for parts in own]

    def step(self, placed: list[Share]) -> list[Any]:
        """Schedule one push for each share. Returns their losses as RemoteValues."""
        self.last_loss = [self.coordinator.schedule(self.train_step, args=(share.per_worker,)) for share in placed]
        return self.last_loss

    def step_in_turn(self, placed: list[Share]) -> list[Any]:
        """As `step`, but each push waits for the one before it, so that a reference can repeat them.

        TensorFlow cannot record which versions of the variables a push has read.
        """
        pushes = []
        for share in placed:
            pushes += self.step([share])
            self.coordinator.join()
        self.last_loss = pushes
        return pushes

    def sync(self) -> None:
        """Wait until the server has made the update of every push. Raises the first error of a push."""
        self.coordinator.join()

    def loss(self, of: Any = None) -> float:
        """The mean of the shares' losses, each at the parameters that its worker pulled."""
        losses = self.coordinator.fetch(self.last_loss if of is None else of)
        return runtime.meeting(self.job.world).exchange(float(np.mean(losses)))[0]

    def evaluate_part(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.device(self.device):
            return super().evaluate_part(x, y)

    def evaluate(self, placed: list[Share]) -> tuple[float, float]:
        """The workers evaluate the shares, at the parameters after all pushes."""
        self.sync()
        scores = [self.coordinator.schedule(self.evaluation_step, args=(share.per_worker,)) for share in placed]
        mean = np.mean(self.coordinator.fetch(scores), axis=0)
        loss, accuracy = runtime.meeting(self.job.world).exchange(mean.tolist())[0]
        return loss, accuracy

    def state(self) -> Arrays | None:
        """As Program.state, after all pushes."""
        self.sync()
        return super().state()


class Worker:
    """The program of every other rank: its TensorFlow server does what rank 0 asks for."""

    own_shares = ()  # rank 0 puts the shares on all devices

    def __init__(self, job: Job, server: tf.distribute.Server) -> None:
        self.job, self.server = job, server

    def place(self, batch: Arrays) -> None: ...

    def step(self, placed: None) -> None: ...

    def step_in_turn(self, placed: None) -> None: ...

    def sync(self) -> None: ...

    def loss(self, of: None = None) -> float:
        """Rank 0's."""
        return runtime.meeting(self.job.world).exchange()[0]

    def evaluate(self, placed: None) -> tuple[float, float]:
        """Rank 0's."""
        loss, accuracy = runtime.meeting(self.job.world).exchange()[0]
        return loss, accuracy

    def state(self) -> None: ...

    def load_state(self, state: Arrays) -> None: ...

    def export(self) -> list[Arrays]:
        """Nothing: rank 0 exports the only copy."""
        return []
