"""Under ParameterServerStrategy rank 0 coordinates: it has the graph of a push, and asks every worker to run it.

TensorFlow's ClusterCoordinator hands a function to whichever worker is free: the documentation of `schedule` says that
"there is no support of worker assignment". Here each share of a batch lies on its worker's device. So each worker has a
thread in rank 0's process, which calls the same graph under the worker's own `tf.device`; ClusterCoordinator does the
same inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from harness.contract import Arrays, Job
from tf_impl import cluster, placement, runtime
from tf_impl.program import Program


class Coordinator(Program):
    """The program of rank 0. A strategy adds `train_step`: one worker's push. Build it in the strategy's scope."""

    def __init__(self, job: Job, model: keras.Model) -> None:
        devices = cluster.worker_devices(job.world)
        super().__init__(job, [model], devices)
        self.share_count = len(devices)
        self.own_shares = range(len(devices))
        self.threads = [ThreadPoolExecutor(1, f"worker {rank}") for rank in self.own_shares]
        self.graphs: dict[Any, Any] = {}
        self.last: list[Future] = []  # the last step's pushes
        self.pushed: list[Future] = []  # all pushes since the last sync

    def to_devices(self, own: Sequence[placement.Parts]) -> list[placement.Parts]:
        """Each worker's share on its device."""
        return [placement.to_device(parts, device) for parts, device in zip(own, self.devices, strict=True)]

    def graph(self, function: Any, parts: placement.Parts) -> Any:
        """One graph of `function` for all workers. A tf.function would be traced again for each device."""
        key = function, parts[0][1].shape  # the targets' shape also says whether they have factors
        if key not in self.graphs:
            self.graphs[key] = function.get_concrete_function(parts)
        return self.graphs[key]

    def submit(self, graph: Any, worker: int, parts: placement.Parts) -> Future:
        """Have a worker run `graph` on its device, after everything it was asked to do before."""

        def call() -> Any:
            with tf.device(self.devices[worker]):
                return graph(parts)

        return self.threads[worker].submit(call)

    def step(self, placed: list[placement.Parts]) -> list[Future]:
        """Ask every worker for one push."""
        graph = self.graph(self.train_step, placed[0])
        self.last = [self.submit(graph, worker, parts) for worker, parts in enumerate(placed)]
        self.pushed += self.last
        return self.last

    def step_in_turn(self, placed: list[placement.Parts]) -> list[Future]:
        """As `step`, but each push waits for the one before it, so that a reference can repeat them.

        TensorFlow cannot record which versions of the variables a push has read.
        """
        graph = self.graph(self.train_step, placed[0])
        self.last = []
        for worker, parts in enumerate(placed):
            self.last.append(self.submit(graph, worker, parts))
            self.last[-1].result()
        self.pushed += self.last
        return self.last

    def sync(self) -> None:
        """Wait until the server has made the update of every push."""
        for push in self.pushed:  # asks each of them, so that no error is lost
            push.result()
        self.pushed = []

    def loss(self, of: Any = None) -> float:
        """The mean of the workers' losses, each at the parameters that the worker pulled."""
        pushes = self.last if of is None else of
        loss = float(np.mean([push.result().numpy() for push in pushes]))
        return runtime.meeting(self.job.world).exchange(loss)[0]

    def evaluate(self, placed: list[placement.Parts]) -> tuple[float, float]:
        """Each worker evaluates its share, at the parameters after all pushes."""
        self.sync()
        graph = self.graph(self.evaluation_step, placed[0])
        calls = [self.submit(graph, worker, parts) for worker, parts in enumerate(placed)]
        scores = np.mean([call.result().numpy() for call in calls], axis=0)
        loss, accuracy = runtime.meeting(self.job.world).exchange(scores.tolist())[0]
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
