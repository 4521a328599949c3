"""tf.distribute.ParameterServerStrategy: a server holds the parameters; workers push gradients without waiting.

    server    | p0 | p1 |    | p0 |    | p1 | p0 | ...     one update per push, in the order of arrival
    worker 0  | share 0 of step 0 | share 0 of step 1  | ...   pulls parameters, computes, pushes a gradient, goes on
    worker 1  | share 1 of step 0  | share 1 of step 1   | ...

The server lives in the host memory of rank 0's process. It has the only copy of the parameters and the optimizer state.
Every rank's process is a worker. A worker that is free takes the next share of a batch, pulls the parameters, computes
the gradient of this share and pushes it, and the server makes one whole update from it. No worker waits for another, so
a gradient may belong to parameters that other workers have changed since, and a fast worker takes more shares than a
slow one. This is not the training of a single device (Dean et al. 2012; harness.reference.asynchronous). Pushes wait
for each other only while the server updates. A pull waits for nobody, so the variables it copies may come from two
versions of the model. BatchNorm normalizes over each share; its running averages are on the server, which adds to them
what each push has changed in its copies.

A worker computes with the copies it pulled, by Keras' `stateless_call`. In most examples the model itself reads each
variable from the server, where a layer needs it. A program of XLA cannot do that, and the setting `xla` compiles loss
and gradients.

Rank 0 is also the coordinator: for each step it schedules one push per share (coordinator.py). cluster.py starts the
servers.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from harness.contract import Job
from tf_impl import cluster, models, placement
from tf_impl.coordinator import Coordinator, Worker
from tf_impl.program import Gradients
from tf_impl.tuning import xla_if_set


class ParameterServer(Coordinator):
    statistics_of = "server"

    def __init__(self, job: Job, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():  # every variable that is created here lives on the server
            self.model = models.build(job.workload, settings=job.settings)
            super().__init__(job, strategy, self.model)
        with tf.device(cluster.SERVER):
            self.turn = tf.CriticalSection()

    @tf.function
    def train_step(self, parts: placement.Parts) -> tf.Tensor:
        """One push: a worker runs it, with one share of the batch."""
        ((x, y),) = parts  # nothing to accumulate: every push is an update of its own
        # The worker's device is named, as `strategy.run` would name it. Otherwise a worker with a GPU uses its CPU.
        with tf.device(self.device):
            loss, gradients, changes = self.loss_and_gradients(*self.pull(), x, y)
        self.push(gradients, changes)
        return loss

    def pull(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The worker's copies of the parameters and of BatchNorm's running averages."""
        parameters = [tf.identity(variable.value) for variable in self.model.trainable_variables]
        running = [tf.identity(variable.value) for variable in self.model.non_trainable_variables]
        return parameters, running

    @xla_if_set
    def loss_and_gradients(
        self, parameters: list[tf.Tensor], running: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, Gradients, list[tf.Tensor]]:
        """Loss, gradients and the changes of the running averages, all computed from pulled copies."""
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            found: Any = self.model.stateless_call(parameters, running, x, training=True)
            outputs, moved = found
            loss = self.loss_fn(outputs, y)
        gradients = tape.gradient(loss, parameters, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, gradients, [after - before for after, before in zip(moved, running, strict=True)]

    def push(self, gradients: Gradients, changes: list[tf.Tensor]) -> None:
        """The server makes one update from the gradients of one worker, and changes the running averages."""

        def update() -> list[tf.Tensor]:
            self.optimizer.apply(gradients)
            averages = [variable.value for variable in self.model.non_trainable_variables]
            for average, change in zip(averages, changes, strict=True):
                average.assign_add(change)
            return [tf.identity(variable) for variable in [*self.optimizer.state(), *averages]]

        # One push at a time: otherwise two could read the same momentum, and one of them would be lost. The lock is the
        # suite's. ParameterServerStrategy has none, and lets every variable be updated on its own, while the gate
        # repeats whole updates in the order in which they were made. A critical section ends when its result is ready,
        # even if something else in it still runs, so the result is everything that it assigned.
        with tf.device(cluster.SERVER):
            self.turn.execute(update)


def build(job: Job) -> ParameterServer | Worker:
    known, servers = cluster.start_servers(job.world)
    if job.world.rank:
        return Worker(job, servers[0])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(known, rpc_layer="grpc", num_accelerators={})
    return ParameterServer(job, tf.distribute.ParameterServerStrategy(resolver))
